"""A cell of an experiment, written down: everything that decides what is trained, except the seed."""

import operator
import shlex
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields, replace
from hashlib import sha256
from math import inf
from typing import Annotated, Any, Self, get_type_hints

from pairnorm.data.features import SCALINGS
from pairnorm.errors import PairNormError, one_of
from pairnorm.nn.models import ORDERS
from pairnorm.nn.pair_norm import MODES
from pairnorm.nn.propagate import KINDS

# The paper's hidden widths; SGC has no hidden layer.
HIDDEN = {"SGC": 0, "GCN": 32, "GAT": 64}
NORMS = ("none", *MODES)
MISSING_KINDS = ("vectors", "nodes", "entries", "given")
LATER = {"scaling": "rows"}
"""Fields that there were not from the beginning, and what they had been before."""

Check = Callable[[str, Any], Any]


def _text(what: str, value: Any) -> str:
    if isinstance(value, str) and value and value.isprintable():
        return value
    raise PairNormError(
        f"{what} is {value!r}; expected a name: a string that is not empty and can be printed."
    )


def _choice(allowed: tuple[str, ...]) -> Check:
    return lambda what, value: one_of(what, value, allowed)


def _whole(minimum: int) -> Check:
    def check(what: str, value: Any) -> int:
        try:
            number = None if isinstance(value, bool) else operator.index(value)
        except TypeError:
            number = None
        if number is None or number < minimum:
            raise PairNormError(f"{what} is {value!r}; expected a whole number, {minimum} or more.")
        return number

    return check


def _real(expected: str, holds: Callable[[float], bool]) -> Check:
    def check(what: str, value: Any) -> float:
        try:
            number = None if isinstance(value, bool | str) else float(value)
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not holds(number):
            raise PairNormError(f"{what} is {value!r}; expected a number {expected}.")
        return number + 0.0  # -0.0 becomes 0.0: equal specs have equal texts

    return check


_fraction = _real("from 0 to 1 (a fraction, not a percentage)", lambda value: 0 <= value <= 1)
_probability = _real("from 0 up to, but not including, 1", lambda value: 0 <= value < 1)
_positive = _real("above 0", lambda value: 0 < value < inf)
_not_negative = _real("of 0 or more", lambda value: 0 <= value < inf)


@dataclass(frozen=True)
class Spec:
    """What a cell trains: dataset, model, normalisation and protocol, frozen and hashable.

    A *trial* is a spec and a seed. Seeds are not part of the spec, so that asking for ten runs after five
    computes only the five that are missing. A field that cannot change the result takes one fixed value
    (an SGC has no ``hidden``, a model without a norm no ``scale``, attention no weighted ``adjacency``), so
    that the same work always has the same ``text`` and ``hash``.

    Args:
        dataset: name of the graph.
        model: ``"SGC"``, ``"GCN"`` or ``"GAT"``.
        depth: number of graph convolutions (K for SGC).
        hidden: width of the hidden layers; 0 stands for the paper's (32 for GCN, 64 for GAT).
        heads: attention heads of a GAT.
        norm: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        scale: PairNorm's s.
        order: normalise ``"after"`` the activation (the paper) or ``"before"`` it (its released code).
        skip: the paper's t: the output of layer l is added to that of layer l + t. 0 for none.
        dropout: probability with which a feature is dropped.
        adjacency: ``"rw"`` or ``"sym"``.
        missing_rate: fraction of what ``missing_kind`` says that is missing.
        missing_kind: ``"vectors"`` of nodes outside the training set (the paper), vectors of any ``"nodes"``,
            single ``"entries"``, or what is missing in the data as ``"given"`` (then there is no rate).
        split: name of the split, ``"default"`` for the one the dataset comes with.
        learning_rate: of Adam.
        weight_decay: of Adam.
        epochs: number of epochs.
        scaling: ``"rows"`` for features divided by their sum, ``"none"`` for features as they are.

    >>> spec = Spec("cora", "GCN", 10, norm="PN-SI", missing_rate=1)
    >>> print(spec)
    cora GCN depth=10 norm=PN-SI missing_rate=1.0
    >>> spec.text
    'cora GCN depth=10 hidden=32 heads=1 norm=PN-SI scale=1.0 order=after skip=0 dropout=0.6 adjacency=rw
    missing_rate=1.0 missing_kind=vectors split=default learning_rate=0.005 weight_decay=0.0005 epochs=1000'
    >>> Spec.parse("cora GCN norm=PN-SI depth=10 missing_rate=1") == spec
    True
    >>> Spec("cora", "SGC", 2, scale=10, skip=1) == Spec("cora", "SGC", 2)
    True
    """

    dataset: Annotated[str, _text]
    model: Annotated[str, _choice(tuple(HIDDEN))]
    depth: Annotated[int, _whole(1)]
    _: KW_ONLY
    hidden: Annotated[int, _whole(0)] = 0
    heads: Annotated[int, _whole(1)] = 1
    norm: Annotated[str, _choice(NORMS)] = "none"
    scale: Annotated[float, _positive] = 1.0
    order: Annotated[str, _choice(ORDERS)] = "after"
    skip: Annotated[int, _whole(0)] = 0
    dropout: Annotated[float, _probability] = 0.6
    adjacency: Annotated[str, _choice(KINDS)] = "rw"
    missing_rate: Annotated[float, _fraction] = 0.0
    missing_kind: Annotated[str, _choice(MISSING_KINDS)] = "vectors"
    split: Annotated[str, _text] = "default"
    learning_rate: Annotated[float, _positive] = 0.005
    weight_decay: Annotated[float, _not_negative] = 5e-4
    epochs: Annotated[int, _whole(1)] = 1000
    scaling: Annotated[str, _choice(SCALINGS)] = "rows"

    def __post_init__(self) -> None:
        values = {name: hint.__metadata__[0](name, getattr(self, name)) for name, hint in _HINTS.items()}
        for name, value in (values | _without_meaning(values)).items():
            object.__setattr__(self, name, value)

    @property
    def text(self) -> str:
        """The canonical text: every field, in the order of declaration.

        It must never change for a given cell, or finished work is lost. A field added by a later version is
        therefore left out of the text where it has its default.
        """
        return self._words(
            tuple(name for name in _HINTS if name not in LATER or getattr(self, name) != LATER[name])
        )

    @property
    def hash(self) -> str:
        """The name of the cell in the store: 16 hexadecimal digits of the SHA-256 of ``text``."""
        return sha256(self.text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Return the text without the fields that have their default, for people."""
        plain = Spec(self.dataset, self.model, self.depth)
        return self._words(
            tuple(name for name in _HINTS if name == "depth" or getattr(self, name) != getattr(plain, name))
        )

    def _words(self, names: tuple[str, ...]) -> str:
        options = [f"{name}={getattr(self, name)}" for name in names if name not in ("dataset", "model")]
        return shlex.join([self.dataset, self.model, *options])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a text: dataset, model, then ``field=value`` in any order; what is absent has its default."""
        try:
            dataset, model, *options = shlex.split(text)
        except ValueError:
            raise PairNormError(
                f"spec is {text!r}; expected dataset, model and options, such as 'cora GCN depth=2 norm=PN'."
            ) from None
        values: dict[str, Any] = {"dataset": dataset, "model": model}
        for option in options:
            name, equals, value = option.partition("=")
            one_of("field", name, tuple(_HINTS))
            if not equals or name in values:
                raise PairNormError(
                    f"option {option!r} of spec {text!r}: expected {name}=value, and {name} once."
                )
            try:
                values[name] = _HINTS[name].__origin__(value)
            except ValueError:
                values[name] = value  # the field's own check says what it expects instead
        if "depth" not in values:
            raise PairNormError(f"spec {text!r} has no depth; add for example depth=2.")
        return cls(**values)

    def replace(self, **changes: Any) -> Self:
        """Return a spec with some fields changed."""
        for name in changes:
            one_of("field", name, tuple(_HINTS))
        return replace(self, **changes)


_HINTS: dict[str, Any] = {
    field.name: get_type_hints(Spec, include_extras=True)[field.name] for field in fields(Spec)
}


def _without_meaning(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that change nothing for this model, norm or rate, with the one value each has."""
    fixed: dict[str, Any] = {}
    if values["model"] != "GAT":
        fixed |= {"heads": 1}
    else:
        fixed |= {"adjacency": "rw"}
    if values["model"] == "SGC":
        fixed |= {"hidden": 0, "skip": 0, "order": "after"}
    elif values["hidden"] == 0:
        fixed |= {"hidden": HIDDEN[values["model"]]}
    if values["norm"] == "none":
        fixed |= {"scale": 1.0, "order": "after"}
    if values["missing_kind"] == "given":
        fixed |= {"missing_rate": 0.0}
    elif values["missing_rate"] == 0:
        fixed |= {"missing_kind": "vectors"}
    return fixed
