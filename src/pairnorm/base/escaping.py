"""Names that others chose, made harmless where they are shown: a function for each medium."""

import html
import re

# Control characters, changes of the direction of writing, and bytes of file names that are no text.
_STEERING = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#])")
_BACKTICKS = re.compile("`+")
# What makes a spreadsheet take a cell for a formula, also as it is written in East Asia.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")


def terminal(text: object) -> str:
    r"""Return a text without what could steer a terminal: such characters as Python writes them.

    >>> terminal("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _STEERING.sub(lambda found: found[0].encode("unicode_escape").decode(), str(text))


def markdown(text: object) -> str:
    r"""Return a text as Markdown shows it unchanged, in a line or in a cell of a table.

    >>> markdown("![x](https://example.org)")
    '!\\[x\\](https\\://example.org)'
    """
    shown = html.escape(terminal(str(text).replace("\n", " ")), quote=False)
    return _MARKDOWN.sub(r"\\\1", shown).replace("://", "\\://").replace("www.", "www\\.")


def markdown_code(text: object) -> str:
    """Return a text as a code span, fenced by more backticks than it holds.

    >>> markdown_code("a `b`")
    '`` a `b` ``'
    """
    shown = terminal(text).replace("|", "\\|")
    longest = max(map(len, _BACKTICKS.findall(shown)), default=0)
    fence, space = "`" * (longest + 1), " " * bool(longest)
    return f"{fence}{space}{shown}{space}{fence}"


def spreadsheet(text: str) -> str:
    """Return a cell that a spreadsheet takes for text, not for a formula; a number stays one.

    >>> spreadsheet("=cmd|' /C calc'!A0"), spreadsheet("-1.5")
    ("'=cmd|' /C calc'!A0", '-1.5')
    """
    if not text.lstrip(" ").startswith(_FORMULA):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
