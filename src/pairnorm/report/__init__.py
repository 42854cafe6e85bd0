"""One HTML file that people read: no network, opens from disk. Other rooms say what is on it."""

from pairnorm.report.charts import Chart
from pairnorm.report.document import (
    Choices,
    Details,
    Document,
    Markdown,
    Nodes,
    Section,
    Table,
    Text,
    Threshold,
    can_render,
    render,
)

__all__ = [
    "Chart",
    "Choices",
    "Details",
    "Document",
    "Markdown",
    "Nodes",
    "Section",
    "Table",
    "Text",
    "Threshold",
    "can_render",
    "render",
]
