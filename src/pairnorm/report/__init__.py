"""One document model, rendered as HTML and Markdown: reports of ``fit``, the paper and the comparisons."""
