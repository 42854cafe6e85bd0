"""What goes wrong with a caller's values, and how the message names them."""

from collections.abc import Sequence
from difflib import get_close_matches


class PairNormError(ValueError):
    """An input that cannot be used. The message names the value, what was expected, and a remedy where there
    is one.
    """


def one_of(what: str, value: object, allowed: Sequence[str]) -> str:
    """Return ``value`` if it is one of ``allowed``, else raise an error that suggests the closest of them.

    >>> one_of("mode", "PN", ["PN", "PN-SI"])
    'PN'
    >>> one_of("mode", "PNSI", ["PN", "PN-SI"])
    Traceback (most recent call last):
    pairnorm.errors.PairNormError: mode is 'PNSI'; expected one of 'PN', 'PN-SI'. Did you mean 'PN-SI'?
    """
    if isinstance(value, str) and value in allowed:
        return value
    close = get_close_matches(str(value), allowed, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise PairNormError(f"{what} is {value!r}; expected one of {', '.join(map(repr, allowed))}.{hint}")
