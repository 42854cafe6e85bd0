"""What goes wrong with a caller's values: one error that carries its parts, and the checks that raise it."""

import operator
import re
import shlex
from collections.abc import Sequence
from copy import copy
from difflib import get_close_matches
from functools import partial
from math import inf
from typing import Any, Self

MOST = 200
"""So many characters of a proposed value are shown: a column may have a whole book for its name."""


class PairNormError(ValueError):
    """An input that cannot be used, or a place that cannot be read or written.

    The parts are fields, so that code may look at them and a message is put together in one place. A hint
    names options as ``{ignore}``; Python shows them as ``ignore=['age']``, a shell as ``--ignore age``.

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
        problem: what is wrong, naming the value.
        code: the kind of mistake, for tests and for programs: words that never change.
        value: the value itself.
        expected: what would have been right.
        hint: what to do about it.
        **options: the arguments that the hint names, with the values it proposes; ``...`` for any.
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
        return self._text({name: _as_argument(name, value) for name, value in self.options.items()})

    def typed(self) -> str:
        """Return the message with options as they are typed on a command line."""
        return self._text({name: _as_option(name, value) for name, value in self.options.items()})

    def within(self, place: str) -> Self:
        """Return the same error, its problem said to be in a place, such as a file; once is enough."""
        if self.problem.startswith(place):
            return self
        error = copy(self)
        error.problem = f"{place}: {self.problem}"
        error.args = (error.problem,)
        return error

    def _text(self, options: dict[str, str]) -> str:
        text = self.problem + (f"; expected {self.expected}" if self.expected else "")
        # At once: a value may have braces of its own.
        hint = re.sub(r"\{(\w+)\}", lambda name: options.get(name[1], name[0]), self.hint)
        if not text.endswith((".", "!", "?", "…")) and (self.expected or self.hint):
            text += "."
        return f"{text} {hint}" if hint else text

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        fields = {name: getattr(self, name) for name in ("code", "value", "expected", "hint")}
        return partial(type(self), self.problem, **fields, **self.options), ()


def _as_argument(name: str, value: Any) -> str:
    return f"{name}=..." if value is ... else f"{name}={quoted(value, MOST)}"


def _as_option(name: str, value: Any) -> str:
    words = ["…"] if value is ... else map(str, value if isinstance(value, list | tuple) else [value])
    return " ".join(
        f"--{name.replace('_', '-')} {word if word == '…' else shlex.quote(word)[:MOST]}" for word in words
    )


def quoted(value: object, most: int = 80) -> str:
    """Return a value as Python writes it, cut to so many characters: a cell may hold a whole book.

    >>> quoted("abcdefghijklmnop", most=8)
    "'abcdef…"
    """
    long = isinstance(value, str | bytes) and len(value) > most
    text = repr(value[:most]) if isinstance(value, str | bytes) else repr(value)
    return text[: most - 1] + "…" if long or len(text) > most else text


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error is about memory; torch's is of no type of its own on a CPU."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("can't allocate memory", "out of memory", "Unable to allocate")
    )


def closest(value: object, allowed: Sequence[str]) -> str:
    """Return a question that suggests the closest of the allowed values; nothing where none is close.

    >>> closest("acc", ["auc", "accuracy"])
    "Did you mean 'accuracy'?"
    >>> closest("pn-si", ["PN", "PN-SI"])
    "Did you mean 'PN-SI'?"
    >>> len(closest("risk", ["risk" + 10_000 * "?"])) < 100
    True
    """
    begun = [one for one in allowed if value and one.startswith(str(value))]
    close = begun if len(begun) == 1 else get_close_matches(str(value), allowed, n=1)
    if not close:  # what differs in case alone is closer than a slip
        lower = {one.lower(): one for one in reversed(allowed)}
        close = [lower[one] for one in get_close_matches(str(value).lower(), [*lower], n=1)]
    return f"Did you mean {quoted(close[0])}?" if close else ""


def one_of(what: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise an error that suggests the closest of them.

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
    hint = closest(value, allowed)
    raise PairNormError(problem, code="unknown-choice", value=value, expected=expected, hint=hint)


def whole_number(what: str, value: Any, least: int = 0, most: float = inf) -> int:
    """Return ``value`` as an int if it is a whole number within bounds; numpy's will do, truths will not.

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
    """Return ``value`` as a float if it is a finite number within bounds; a text is no number.

    >>> real_number("scale", float("nan"), above=0)
    Traceback (most recent call last):
    pairnorm.base.errors.PairNormError: scale is nan; expected a finite number above 0.
    """
    try:
        number = None if isinstance(value, bool | str) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = None
    # Comparisons alone: false for NaN, and torch.compile can trace them.
    if number is not None and least <= number <= most and above < number < below and -inf < number < inf:
        return number + 0.0  # -0.0 becomes 0.0
    low = f"above {above:g}" if above > -inf else f"from {least:g}" if least > -inf else ""
    high = f"below {below:g}" if below < inf else f"{'to' if low else 'up to'} {most:g}" if most < inf else ""
    bounds = f" {low or ''}{' ' if low and high else ''}{high}".rstrip()
    problem = f"{what} is {quoted(value)}"
    raise PairNormError(problem, code="not-a-number", value=value, expected=f"a finite number{bounds}")
