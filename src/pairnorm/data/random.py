"""Random numbers that are the same on every machine and under every numpy: the raw stream of PCG64."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pairnorm.base.errors import whole_number


class Stream:
    """A stream of random numbers named by a seed and a purpose: a split and a mask of one seed are unrelated.

    numpy promises the raw output of PCG64 for all time, but not what ``Generator.permutation`` makes of it.

    >>> Stream(0, "split").keys(2)
    array([2528659360018663308, 1948793138670453584], dtype=uint64)

    Args:
        seed: a whole number, 0 or more.
        purpose: what the numbers are for.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._bits = np.random.PCG64([int.from_bytes(purpose.encode(), "big"), whole_number("seed", seed)])

    def keys(self, count: int) -> NDArray[np.uint64]:
        """Return ``count`` whole numbers, uniform over 64 bits."""
        raw: Any = self._bits.random_raw(count)
        return np.asarray(raw, dtype=np.uint64)

    def uniform(self, count: int) -> NDArray[np.float64]:
        """Return ``count`` numbers, uniform over [0, 1)."""
        return np.right_shift(self.keys(count), np.uint64(11)) * 2.0**-53

    def order(self, count: int) -> NDArray[np.int64]:
        """Return the numbers 0 .. count - 1 in random order."""
        return np.argsort(self.keys(count), kind="stable")
