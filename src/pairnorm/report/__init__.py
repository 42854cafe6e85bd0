"""One document model, rendered as HTML and Markdown: reports of ``fit``, the paper and the comparisons."""

from pairnorm.report.charts import Chart
from pairnorm.report.document import (
    Choices,
    Details,
    Document,
    Image,
    Markdown,
    Nodes,
    Only,
    Section,
    Table,
    Text,
    Threshold,
    can_render_html,
    render_html,
    render_markdown,
)

__all__ = [
    "Chart",
    "Choices",
    "Details",
    "Document",
    "Image",
    "Markdown",
    "Nodes",
    "Only",
    "Section",
    "Table",
    "Text",
    "Threshold",
    "can_render_html",
    "render_html",
    "render_markdown",
]
