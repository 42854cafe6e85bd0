"""One error with its parts, the checks of arguments that raise it, and escaping of text from users."""

import html
import operator
import re
import shlex
from collections.abc import Mapping, Sequence
from copy import copy
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from math import inf
from typing import Any, Self
from urllib.parse import unquote

MAX_VALUE_LENGTH = 200
"""Characters of a proposed value that a message shows: a column may have a very long name."""
MAX_PROBLEM_LENGTH = 1000
"""Characters of a problem that a message shows: it may quote a library, or a type of many columns."""
SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}
# Control characters, changes of writing direction, and bytes of file names that are not text.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_MARKDOWN = re.compile(r"([\\`*_\[\]|~$#])")
_BACKTICKS = re.compile("`+")
# Characters that start a formula in a spreadsheet, also in full width.
_FORMULA = tuple("=+-@\t\r\n＝＋－＠")
_URL_PASSWORD = re.compile(r"(://[^\s:/]*:)\S*@")
_QUERY_PASSWORD = re.compile(
    r"([?&;=][\w-]*(?:password|passwd|pwd|secret|token|key)=)([^\s&;'\"]+)", re.IGNORECASE
)
# A word with "://" in it, searched from its first character only.
_URL = re.compile(r"(?<!\S)\S*?://\S*")
_SHORTEST_SECRET = 4
_secrets: set[str] = set()


class PairNormError(ValueError):
    """An input that cannot be used, or a path that cannot be read or written.

    Programs can read the parts. A hint names options as ``{ignore}``; Python shows them as
    ``ignore=['age']``, the command line as ``--ignore age``. Passwords in URLs are never shown.

    >>> error = PairNormError(
    ...     "there is no column 'agee'",
    ...     code="unknown-column",
    ...     value="agee",
    ...     expected="one of 'age'",
    ...     hint="Correct it, or pass {ignore}.",
    ...     ignore=["agee"],
    ... )
    >>> print(error)
    there is no column 'agee'; expected one of 'age'. Correct it, or pass ignore=['agee'].
    >>> print(error.typed())
    there is no column 'agee'; expected one of 'age'. Correct it, or pass --ignore agee.

    Args:
        problem: what is wrong, with the value.
        code: the kind of error, for programs; codes do not change between releases.
        value: the value itself.
        expected: a valid value.
        hint: how to fix it.
        **options: arguments that the hint names, with the values it proposes; ``...`` for any.
    """

    def __init__(
        self,
        problem: str,
        *,
        code: str = "input",
        value: Any = None,
        expected: str = "",
        hint: str = "",
        **options: Any,
    ) -> None:
        super().__init__(problem)
        self.problem, self.code, self.value = problem, code, value
        self.expected, self.hint, self.options = expected, hint, options

    def __str__(self) -> str:
        options = self.options.items()
        shown = {name: "..." if value is ... else repr(value)[:MAX_VALUE_LENGTH] for name, value in options}
        return self._text({name: f"{name}={value}" for name, value in shown.items()})

    def typed(self, names: Mapping[str, str] | None = None) -> str:
        """Return the message with options as they are typed on a command line.

        Args:
            names: options by the name of the Python argument, where the two differ.
        """
        renamed = names or {}
        argument, is_, rest = self.problem.partition(" is ")
        problem = f"{renamed[argument].replace('_', '-')}{is_}{rest}" if argument in renamed else None
        options = {name: _as_option(renamed.get(name, name), value) for name, value in self.options.items()}
        return self._text(options, problem)

    def within(self, prefix: str) -> Self:
        """Return the same error with a prefix such as a file name, unless it has that prefix already."""
        if self.problem.startswith(prefix):
            return self
        error = copy(self)
        error.problem = f"{prefix}: {self.problem}"
        error.args = (error.problem,)
        return error

    def _text(self, options: dict[str, str], problem: str | None = None) -> str:
        text = problem or self.problem
        text = text if len(text) <= MAX_PROBLEM_LENGTH else f"{text[:MAX_PROBLEM_LENGTH]}…"
        text += f"; expected {self.expected}" if self.expected else ""
        # In one pass: a value may have braces of its own.
        hint = re.sub(r"\{(\w+)\}", lambda name: options.get(name[1], name[0]), self.hint)
        if not text.endswith((".", "!", "?", "…")) and (self.expected or self.hint):
            text += "."
        return redact(f"{text} {hint}" if hint else text)

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        fields = {name: getattr(self, name) for name in ("code", "value", "expected", "hint")}
        return partial(type(self), self.problem, **fields, **self.options), ()


def _as_option(name: str, value: Any) -> str:
    """Return an argument as an option of the command line: ``--time-limit 5m``, once per value of a list."""
    words = ["…"] if value is ... else map(str, value if isinstance(value, list | tuple) else [value])
    return " ".join(
        f"--{name.replace('_', '-')} {word if word == '…' else shlex.quote(word)[:MAX_VALUE_LENGTH]}"
        for word in words
    )


def quoted(value: object, max_length: int = 80) -> str:
    r"""Return a value as Python writes it, but backslashes as they are, cut to ``max_length`` characters.

    >>> quoted("abcdefghijklmnop", max_length=8)
    "'abcdef…"
    >>> print(quoted(r"C:\temp"))
    'C:\temp'
    """
    long = isinstance(value, str | bytes) and len(value) > max_length
    text = repr(value[:max_length]) if isinstance(value, str | bytes) else repr(value)
    text = text.replace(r"\\", "\\") if isinstance(value, str) else text
    return text[: max_length - 1] + "…" if long or len(text) > max_length else text


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error means that memory ran out; on a CPU torch has no error class for it."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory", "Unable to allocate")
    )


def did_you_mean(value: object, allowed: Sequence[str]) -> str:
    """Suggest the closest allowed value as a question; empty where none is close.

    >>> did_you_mean("acc", ["auc", "accuracy"])
    "Did you mean 'accuracy'?"
    >>> did_you_mean("pn-si", ["PN", "PN-SI"])
    "Did you mean 'PN-SI'?"
    >>> len(did_you_mean("risk", ["risk" + 10_000 * "?"])) < 100
    True
    """
    prefixed = [name for name in allowed if value and name.startswith(str(value))]
    close = prefixed if len(prefixed) == 1 else get_close_matches(str(value), allowed, n=1)
    if not close:  # then without regard to case
        lower = {name.lower(): name for name in reversed(allowed)}
        close = [lower[name] for name in get_close_matches(str(value).lower(), [*lower], n=1)]
    return f"Did you mean {quoted(close[0])}?" if close else ""


def one_of(what: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise an error that suggests the closest.

    >>> one_of("mode", "PN", ["PN", "PN-SI"])
    'PN'
    >>> one_of("mode", "PNSI", ["PN", "PN-SI"])
    Traceback (most recent call last):
    pairnorm.base.errors.PairNormError: mode is 'PNSI'; expected one of 'PN', 'PN-SI'. Did you mean 'PN-SI'?
    """
    if isinstance(value, str) and value in allowed:
        return value
    problem = f"{what} is {quoted(value)}"
    expected = f"one of {', '.join(map(repr, allowed))}"
    hint = did_you_mean(value, allowed)
    raise PairNormError(problem, code="unknown-choice", value=value, expected=expected, hint=hint)


def whole_number(what: str, value: Any, least: int = 0, most: float = inf) -> int:
    """Return ``value`` as an int if it is an integer within bounds, of Python or numpy; booleans are refused.

    >>> whole_number("depth", 0, least=1)
    Traceback (most recent call last):
    pairnorm.base.errors.PairNormError: depth is 0; expected a whole number, 1 or more.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is not None and least <= number <= most:
        return number
    bounds = f"{least} or more" if most == inf else f"from {least} to {most}"
    problem = f"{what} is {quoted(value)}"
    raise PairNormError(problem, code="not-a-whole-number", value=value, expected=f"a whole number, {bounds}")


def real_number(
    what: str, value: Any, *, least: float = -inf, above: float = -inf, most: float = inf, below: float = inf
) -> float:
    """Return ``value`` as a float if it is a finite number within bounds; texts are refused.

    >>> real_number("scale", float("nan"), above=0)
    Traceback (most recent call last):
    pairnorm.base.errors.PairNormError: scale is nan; expected a finite number above 0.
    >>> real_number("sets", 90, least=0, below=1)
    Traceback (most recent call last):
    pairnorm.base.errors.PairNormError: sets is 90; expected a finite number from 0 to below 1.
    """
    try:
        number = None if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    # Comparisons alone: false for NaN, and torch.compile can trace them.
    if number is not None and least <= number <= most and above < number < below and -inf < number < inf:
        return number + 0.0  # -0.0 becomes 0.0
    low = f"above {above:g}" if above > -inf else f"from {least:g}" if least > -inf else ""
    bound = f"below {below:g}" if below < inf else f"{most:g}" if most < inf else ""
    high = f"to {bound}" if low and bound else bound if below < inf or not bound else f"up to {bound}"
    expected = " ".join(filter(None, ("a finite number", low, high)))
    raise PairNormError(f"{what} is {quoted(value)}", code="not-a-number", value=value, expected=expected)


def wrong_shape(
    name: str, shape: Sequence[int], expected: str, dtype: object = None, **details: Any
) -> PairNormError:
    """Return an error about a tensor or array whose shape is not the expected one."""
    problem = f"{name} has shape {list(shape)}{'' if dtype is None else f' and dtype {dtype}'}"
    return PairNormError(problem, code="wrong-shape", value=list(shape), expected=expected, **details)


def no_tensor(name: str, value: object, expected: str = "a tensor") -> PairNormError:
    """Return an error about an argument that is no tensor."""
    problem, hint = f"{name} is of type {type(value).__name__}", f"Call torch.tensor({name})."
    return PairNormError(problem, code="wrong-type", value=value, expected=expected, hint=hint)


def parse_duration(what: str, value: float | str) -> float:
    """Return seconds, from a number or a text such as ``'90s'``, ``'5m'`` or ``'1.5h'``.

    >>> parse_duration("time_limit", "5m")
    300.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", str(value).strip())
    if not match or float(match[1]) == inf:
        expected = "a time such as '90s', '5m' or '1h'"
        raise PairNormError(f"{what} is {quoted(value)}", code="not-a-time", value=value, expected=expected)
    return float(match[1]) * SECONDS[match[2]]


def register_password(url: str) -> None:
    """Register the passwords in a text, if it is a URL, as secrets that ``redact`` removes from any text."""
    if "://" not in url:
        return
    match = re.search(r"://[^:/]*:(.*)@", url, re.DOTALL)
    secrets = [match[1]] if match else []
    # A URL of ODBC holds its parameters in one that is encoded.
    secrets += [value for text in (url, unquote(url)) for _, value in _QUERY_PASSWORD.findall(text)]
    for secret in {*secrets, *map(unquote, secrets)}:
        # Of a password with an @, a driver takes the end for a part of the host.
        _secrets.update(part for part in (secret, *secret.split("@")) if len(part) >= _SHORTEST_SECRET)


def redact(text: str) -> str:
    """Return a text with ``***`` in place of passwords.

    >>> redact("cannot open postgresql://ann:secret@host/db?password=x")
    'cannot open postgresql://ann:***@host/db?password=***'
    """
    if _secrets:
        any_secret = "|".join(map(re.escape, sorted(_secrets, key=len, reverse=True)))
        # A word on its own, also after an escape such as \n; in a URL, where it may be encoded, any part.
        text = re.sub(rf"((?<!\w)|(?<=\\[abfnrtv]))({any_secret})(?!\w)", "***", text)
        text = _URL.sub(lambda url: re.sub(any_secret, "***", url[0]), text)
    return _QUERY_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1***@", text))


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


def load_library(name: str, what: str) -> Any:
    """Import an optional library, or raise an error that says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise missing_library(what, name.partition(".")[0]) from error


def missing_library(what: str, library: str | None) -> PairNormError:
    """Return the error about a library that is not installed."""
    problem = f"{what} needs {library}"
    return PairNormError(problem, code="library-missing", value=library, hint=install("all"))


def install(extra: str) -> str:
    """Return the commands that install an extra: from an index, and from a checkout."""
    return f"pip install 'pairnorm[{extra}]', or pip install '.[{extra}]' in a checkout"
