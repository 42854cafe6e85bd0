"""A spec: everything that decides what is trained, except the seed."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, fields, replace
from functools import cache, cached_property, lru_cache, partial
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, get_type_hints

from pairnorm.base.errors import PairNormError, one_of, quoted, real_number, whole_number
from pairnorm.data.features import SCALINGS
from pairnorm.impute.methods import STORED_IMPUTATIONS
from pairnorm.nn.models import ORDERS, PRECISIONS, Order, Precision
from pairnorm.nn.pair_norm import MODES, Mode
from pairnorm.nn.propagate import NORMALIZATIONS, Normalization
from pairnorm.train.methods import METHODS, stored_name

if TYPE_CHECKING:
    from pairnorm.data import Graph

# The paper's hidden widths; SGC has no hidden layer.
HIDDEN = {"SGC": 0, "GCN": 32, "GAT": 64}
Norm = Literal["none"] | Mode
NORMS: tuple[Norm, ...] = ("none", *MODES)
METRICS = ("accuracy", "auc")
# Kinds with missing entries; all others have missing vectors.
ENTRIES = ("entries", "value")
MISSING_KINDS = ("vectors", "nodes", "class", "degree", *ENTRIES, "given")
ADDED_FIELDS: dict[str, Any] = {
    "scaling": "rows",
    "method": "none",
    "strength": 0.0,
    "imputation": "zero",
    "precision": "float32",
    "metric": "accuracy",
}
"""Fields that ``Spec.text`` leaves out if they have this value, and that older exports do not have."""

FINGERPRINTS = {
    "cora": "783d7040302a5768",
    "citeseer": "f182b3d3f80beeec",
    "pubmed": "6e93d2f84ac40b87",
    "coauthor-cs": "0fb0648d0061bfa2",
    "minesweeper": "d9696849c9dcaa6a",
    "chains-2": "bf9caa1bd31f86fb",
    "chains-4": "6b0228deed329035",
    "chains-8": "e202700e00d6c70c",
    "chains-16": "c0d71a1a75a40e81",
    "chains-32": "a2671e870584cece",
}
"""``Graph.fingerprint`` of the graphs of this package, whose trials are stored under the plain name."""

STORED_NAMES = {"method": "remedy", "imputation": "fill"}
"""Fields that have another name in ``Spec.text``, in the columns of a store and in its exports."""


def _check_name(what: str, value: Any) -> str:
    """Validate a name that is not empty and can be printed."""
    if isinstance(value, str) and value and value.isprintable():
        return value
    expected = "a name: a string that is not empty and can be printed"
    raise PairNormError(f"{what} is {quoted(value)}", code="not-a-name", value=value, expected=expected)


def _one_of(*allowed: str) -> Callable[[str, Any], str]:
    """Return the check that a value is one of these."""
    return partial(one_of, allowed=allowed)


# A number above a billion is a mistake, and SQLite stores none above 2**63.
_from_0, _from_1 = (partial(whole_number, least=least, most=10**9) for least in (0, 1))
_positive, _not_negative = partial(real_number, above=0), partial(real_number, least=0)
_fraction, _probability = partial(real_number, least=0, most=1), partial(real_number, least=0, below=1)


@dataclass(frozen=True)
class Spec:
    """What a trial trains: dataset, model, normalization and protocol, frozen and hashable.

    A *trial* is a spec and a seed. Seeds are not part of the spec, so that a request for ten runs after five
    computes only five. Specs of the same computation are equal: a field that cannot change the result takes
    one fixed value. An SGC has no ``hidden``, a model without a norm no ``scale``, attention no weighted
    ``adjacency``, two layers no ``skip``, one layer no ``norm`` and no ``hidden``; the split ``"random@0"``
    is ``"random"``.

    Args:
        dataset: name of the graph.
        model: ``"SGC"``, ``"GCN"`` or ``"GAT"``.
        depth: number of graph convolutions (K for SGC).
        hidden: width of the hidden layers; 0 for the paper's (32 for GCN, 64 for GAT).
        heads: attention heads of a GAT.
        norm: ``"none"``, ``"PN"``, ``"PN-SI"`` or ``"PN-SCS"``.
        scale: PairNorm's s.
        order: normalize ``"after"`` the activation (the paper) or ``"before"`` it (its released code).
        skip: the paper's t: the output of layer l is added to that of layer l + t. 0 for none.
        dropout: probability with which a feature is dropped.
        adjacency: ``"rw"`` or ``"sym"``.
        missing_rate: fraction of missing vectors or entries.
        missing_kind: ``"vectors"`` of nodes outside the training set (the paper); such vectors with a rate
            that depends on the ``"class"`` or the ``"degree"``; vectors of any ``"nodes"``; single
            ``"entries"``; entries with a rate that depends on their ``"value"``; or only values that are
            missing in the data, ``"given"`` (then there is no rate).
        split: name of the split; ``"default"`` is the one that the dataset comes with, ``"public"`` the same
            for graphs with a public split.
        learning_rate: of Adam.
        weight_decay: of Adam.
        epochs: number of epochs.
        scaling: ``"rows"`` for features divided by their sum, ``"none"`` for features as they are.
        method: method against oversmoothing, a name in ``pairnorm.train.METHODS`` or your own, see
            ``pairnorm.train.register``. A method that other fields express is replaced by these fields.
        strength: the parameter of the method; 0 for its usual value.
        imputation: of missing features, one of ``STORED_IMPUTATIONS``; ``"zero"`` as in the paper.
        precision: the type of states between the layers of a GCN or GAT, ``"float32"`` or ``"bfloat16"``,
            without a method or with one of PairNorm's modes; see ``pairnorm.nn.GCN``.
        metric: of the validation nodes, which selects the epoch: ``"accuracy"``, or ``"auc"`` for two
            classes, which also stores ``validation_auc`` and ``test_auc`` as measures.

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
    >>> print(Spec("cora", "GCN", 64, method="GCNII", adjacency="sym"))
    cora GCN depth=64 adjacency=sym method=GCNII strength=0.1
    >>> Spec("cora", "GCN", 10, method="PN-SI", missing_rate=1) == spec
    True
    """

    dataset: Annotated[str, _check_name]
    model: Annotated[str, _one_of(*HIDDEN)]
    depth: Annotated[int, _from_1]
    _: KW_ONLY
    hidden: Annotated[int, _from_0] = 0
    heads: Annotated[int, _from_1] = 1
    norm: Annotated[Norm, _one_of(*NORMS)] = "none"
    scale: Annotated[float, _positive] = 1.0
    order: Annotated[Order, _one_of(*ORDERS)] = "after"
    skip: Annotated[int, _from_0] = 0
    dropout: Annotated[float, _probability] = 0.6
    adjacency: Annotated[Normalization, _one_of(*NORMALIZATIONS)] = "rw"
    missing_rate: Annotated[float, _fraction] = 0.0
    missing_kind: Annotated[str, _one_of(*MISSING_KINDS)] = "vectors"
    split: Annotated[str, _check_name] = "default"
    learning_rate: Annotated[float, _positive] = 0.005
    weight_decay: Annotated[float, _not_negative] = 5e-4
    epochs: Annotated[int, _from_1] = 1000
    scaling: Annotated[str, _one_of(*SCALINGS)] = "rows"
    method: Annotated[str, stored_name] = "none"
    strength: Annotated[float, _not_negative] = 0.0
    imputation: Annotated[str, _one_of(*STORED_IMPUTATIONS)] = "zero"
    precision: Annotated[Precision, _one_of(*PRECISIONS)] = "float32"
    metric: Annotated[str, _one_of(*METRICS)] = "accuracy"

    def __post_init__(self) -> None:
        values = vars(self)  # faster than object.__setattr__: a report makes a hundred thousand specs
        others = [values[name] for name in _OTHERS]
        plain = self.method == "none" and {*map(type, others)} <= {str, int, float}
        values |= (_canonical_fields if plain else _canonical_fields.__wrapped__)(*others)
        values["depth"] = _check("depth", self.depth)
        if self.skip > max(self.depth - 2, 0):  # no two hidden layers are that far apart
            values["skip"] = 0
        if self.depth == 1 and self.model != "SGC":  # there is no hidden layer
            if "@" not in self.method and METHODS[self.method].uses_order:
                values |= {"method": "none", "strength": 0.0}
            if self.method == "none":
                values |= {"norm": "none", "scale": 1.0, "order": "after", "precision": "float32"}
                values["hidden"] = HIDDEN[self.model]

    @property
    def mode(self) -> Mode | None:
        """PairNorm's mode, None without a norm."""
        return None if self.norm == "none" else self.norm

    @property
    def text(self) -> str:
        """The canonical text: every field, in the order of declaration.

        It must never change for a given spec, or finished trials are not found. Therefore fields of
        ``ADDED_FIELDS`` are left out of the text if they have their default.
        """
        names = [name for name in _HINTS if getattr(self, name) != ADDED_FIELDS.get(name)]
        return self._words({STORED_NAMES.get(name, name): name for name in names})

    @cached_property
    def hash(self) -> str:
        """The key of the spec in a store: 16 hexadecimal digits of the SHA-256 of ``text``."""
        return sha256(self.text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """Return the text without the fields that have their default."""
        plain = Spec(self.dataset, self.model, self.depth)
        names = [name for name in _HINTS if name == "depth" or getattr(self, name) != getattr(plain, name)]
        return self._words({name: name for name in names})

    def _words(self, names: Mapping[str, str]) -> str:
        """Return ``name=value`` for each name and field, after dataset and model."""
        options = {name: field for name, field in names.items() if field not in ("dataset", "model")}
        words = [f"{name}={getattr(self, field)}" for name, field in options.items()]
        return shlex.join([self.dataset, self.model, *words])

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a text: dataset, model, then ``field=value`` in any order."""
        try:
            dataset, model, *options = shlex.split(text)
        except ValueError:
            raise _malformed(text, f"spec is {quoted(text)}") from None
        values: dict[str, Any] = {"dataset": dataset, "model": model}
        for option in options:
            name, equals, value = option.partition("=")
            name = one_of("field", _FIELDS.get(name, name), tuple(_HINTS))
            if not equals or name in values:
                problem = f"option {quoted(option)} of spec {quoted(text)} has no value, or {name} a second"
                raise _malformed(text, problem)
            try:
                kind = _HINTS[name].__origin__
                values[name] = kind(value) if kind in (int, float) else value
            except ValueError:
                values[name] = value  # the check of the field then raises an error
        if "depth" not in values:
            raise _malformed(text, f"spec {quoted(text)} has no depth")
        return cls(**values)

    def on(self, graph: "Graph") -> Self:
        """Return the spec with the graph's fingerprint after the dataset's name, as in ``mine@01ab…``.

        ``run`` stores the trials of the graphs it is given under such names, so that the store never returns
        trials of another graph of the same name. A named graph of the package keeps its plain name, if it is
        that graph with the split that ``load`` gives it.
        """
        name, at, known = self.dataset.partition("@")
        if at and known != graph.fingerprint:
            problem = (
                f"the spec is of {self.dataset!r}, but that graph has the fingerprint {graph.fingerprint!r}"
            )
            hint = "Pass the graph that the spec was made for, or remove the text after the @."
            raise PairNormError(problem, code="other-graph", value=self.dataset, hint=hint)
        if graph.fingerprint != _package_fingerprint(name):
            name = f"{name}@{graph.fingerprint}"
        return self.replace(dataset=name)

    def replace(self, **changes: Any) -> Self:
        """Return a spec with some fields changed."""
        for name in changes:
            one_of("field", name, tuple(_HINTS))
        return replace(self, **changes)


_HINTS: dict[str, Any] = {
    field.name: get_type_hints(Spec, include_extras=True)[field.name] for field in fields(Spec)
}
_FIELDS = {stored: name for name, stored in STORED_NAMES.items()}
_OTHERS = tuple(name for name in _HINTS if name != "depth")


def _check(name: str, value: Any) -> Any:
    """Validate the value of a field."""
    return _HINTS[name].__metadata__[0](name, value)


@cache
def _package_fingerprint(name: str) -> str | None:
    """Return the fingerprint of a graph of this package; None for another name."""
    if name == "csbm":
        from pairnorm.data import load

        return load(name).fingerprint
    return FINGERPRINTS.get(name)


@lru_cache(8192, typed=True)  # a store has tens of thousands of specs, which differ in depth above all
def _canonical_fields(*others: Any) -> dict[str, Any]:
    """Validate all fields except the depth; a field that cannot change the result gets its fixed value."""
    values = {name: _check(name, value) for name, value in zip(_OTHERS, others, strict=True)}
    values |= _apply_method(values)
    return values | _idle_fields(values)


def _malformed(text: str, problem: str) -> PairNormError:
    """Return the error about the text of a spec."""
    expected = "dataset, model and options, each once, such as 'cora GCN depth=2 norm=PN'"
    return PairNormError(problem, code="malformed-spec", value=text, expected=expected)


_SEEDED_SPLIT = re.compile(r"(random|per-class-\d+(?:-of-\d+)?)@(\d{1,18})", re.ASCII)
_WITH_PUBLIC_SPLIT = ("cora", "citeseer", "pubmed")
_NEITHER = {"norm": "none", "skip": 0}


def _apply_method(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that the method sets; none for a method that this process does not know."""
    if values["method"] == "none":
        return {"strength": 0.0}
    method, strength = METHODS.get(values["method"]), values["strength"]
    if method is None:
        return {}
    if (model := values["model"]) not in method.models:
        problem = f"method {values['method']!r} does not apply to {model}"
        expected = f"one of {', '.join(method.models)}"
        raise PairNormError(problem, code="not-together", value=model, expected=expected)
    strength = (strength or method.grid[0]) if method.grid else 0.0
    changes: dict[str, Any] = {}
    if method.fields is not None:
        changes = {"method": "none", "strength": 0.0, **method.fields(strength)}
        if not values["strength"]:
            changes.pop("scale", None)  # PairNorm's has a field of its own
    others = {name: value for name, value in _NEITHER.items() if method.is_exclusive or name in changes}
    for name, without in others.items():
        if values[name] not in (without, changes.get(name)):
            problem = f"{name} is {values[name]!r} together with method {values['method']!r}"
            raise PairNormError(problem, code="not-together", value=values[name], expected="one or the other")
    return changes or {"strength": strength}


def _idle_fields(values: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that cannot change the result for these values, with their fixed values."""
    method = METHODS.get(values["method"])
    fixed: dict[str, Any] = {} if values["model"] == "GAT" else {"heads": 1}
    if values["model"] == "GAT" or (method is not None and not method.uses_adjacency):
        fixed |= {"adjacency": "rw"}
    if values["model"] == "SGC":
        fixed |= {"hidden": 0, "skip": 0, "order": "after"}
    elif values["hidden"] == 0:
        fixed |= {"hidden": HIDDEN[values["model"]]}
    if values["model"] == "SGC" or values["method"] != "none":
        fixed |= {"precision": "float32"}
    if values["norm"] == "none":
        fixed |= {"scale": 1.0}
        if method is not None and not method.uses_order:
            fixed |= {"order": "after"}
    if seeded := _SEEDED_SPLIT.fullmatch(values["split"]):
        name, seed = seeded.groups()
        fixed |= {"split": f"{name}@{int(seed)}" if int(seed) else name}
    elif values["split"] == "public" and values["dataset"] in _WITH_PUBLIC_SPLIT:
        fixed |= {"split": "default"}
    if values["missing_kind"] == "given":
        fixed |= {"missing_rate": 0.0}
    elif values["missing_rate"] == 0:
        fixed |= {"missing_kind": "vectors", "imputation": "zero"}
    return fixed
