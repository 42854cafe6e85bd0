"""Escape names from a user's data for each medium, and hide passwords."""

import html
import re
from urllib.parse import unquote

# Control characters, changes of writing direction, and bytes of file names that are not text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#])")
_BACKTICKS = re.compile("`+")
# Characters that start a formula in a spreadsheet, also in full width.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_URL_PASSWORD = re.compile(r"(://[^\s:/@]*:)\S*@")
_QUERY_PASSWORD = re.compile(r"([?&;](?:password|passwd|pwd|sslpassword|token)=)[^\s&;'\"]+", re.IGNORECASE)
_SHORTEST_SECRET = 4
_secrets: set[str] = set()


def register_password(url: str) -> None:
    """Register the password of a URL as a secret, so that ``redact`` removes it from any text."""
    match = re.match(r"[\w+.-]+://[^:/@]*:(.*)@", url, re.DOTALL)
    secrets = [match[1], unquote(match[1])] if match else []
    secrets += [unquote(one.partition("=")[2]) for one in re.findall(r"(?i)\b(?:password|pwd)=[^&;]+", url)]
    _secrets.update(secret for secret in secrets if len(secret) >= _SHORTEST_SECRET)


def redact(text: str) -> str:
    """Return a text with ``***`` in place of passwords.

    >>> redact("cannot open postgresql://ann:secret@host/db?password=x")
    'cannot open postgresql://ann:***@host/db?password=***'
    """
    for secret in _secrets:
        text = text.replace(secret, "***")
    return (
        _QUERY_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))
        if "=" in text or "@" in text
        else text
    )


def terminal(text: object) -> str:
    r"""Return a text with control characters as Python writes them, and without passwords.

    >>> terminal("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), redact(str(text)))


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
    """Return a cell that a spreadsheet shows as text instead of running it; numbers stay numbers.

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
