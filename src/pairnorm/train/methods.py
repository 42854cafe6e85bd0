"""The registry of methods against oversmoothing, the package's and the user's, for ``Spec.method``."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.nn import APPNP, G2, GAT, GCN, GCNII, SMPNN
from pairnorm.nn.norms import NORMS, BatchNorm, make_norm
from pairnorm.nn.propagate import Normalization
from pairnorm.train.per_trial import ModelPerTrial, PerTrial

if TYPE_CHECKING:
    from pairnorm.train.spec import Spec

Model = GCN | GAT | GCNII | APPNP | SMPNN | G2 | ModelPerTrial
GROUP = "pairnorm.methods"
"""The group of entry points of packages with methods: a name, and the factory of a norm or a model."""


@dataclass(frozen=True)
class Method:
    """A method against oversmoothing, with at most one parameter to tune.

    Args:
        parameter: name of ``Spec.strength`` in the method's formula; empty if there is none.
        grid: values to tune it over, the usual one first; a strength of 0 means the first.
        models: to which it applies.
        norm: makes the norm of a layer from its width, the number of trials and the strength.
        options: arguments of ``GCN`` and ``GAT``, from the strength.
        model: makes the model, with the arguments of GCN and the strength under the name ``parameter``.
        fields: fields of a ``Spec`` that express the method, from the strength.
        settings: fields of a ``Spec`` in the method's published form.
        quadratic: whether the time of an epoch is quadratic in the number of nodes.
    """

    parameter: str = ""
    grid: tuple[float, ...] = ()
    models: tuple[str, ...] = ("GCN", "GAT")
    norm: Callable[[int, int, float], nn.Module] | None = None
    options: Callable[[float], Mapping[str, Any]] | None = None
    model: Callable[..., GCNII | APPNP | SMPNN | G2 | ModelPerTrial] | None = None
    fields: Callable[[float], Mapping[str, Any]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    quadratic: bool = False

    @property
    def is_exclusive(self) -> bool:
        """Whether it excludes another norm or skip."""
        return self.norm is not None or self.model is not None

    @property
    def uses_order(self) -> bool:
        """Whether ``Spec.order`` applies to it."""
        return self.norm is not None and self.options is None

    def arguments(self, spec: "Spec", trials: int) -> dict[str, Any]:
        """Return the arguments of GCN and GAT that it changes."""
        changed = dict(self.options(spec.strength) if self.options else {})
        if self.norm is not None:
            changed["norm"] = partial(self.norm, spec.hidden, trials, spec.strength)
        return changed


def _named_norm(name: str, features: int, trials: int, strength: float) -> nn.Module:
    parameter = NORMS[name].parameter
    return make_norm(name, features, trials, **({} if parameter is None else {parameter: strength}))


def _norm(name: str, *grid: float, **more: Any) -> Method:
    return Method(NORMS[name].parameter or "", grid, norm=partial(_named_norm, name), **more)


def _pair_norm(mode: str) -> Method:
    return Method("scale", (1.0, 10.0), _ANY, fields=lambda scale: {"norm": mode, "scale": scale})


def _batch_norm(features: int, trials: int, strength: float) -> nn.Module:
    return BatchNorm(features, num_models=trials)


def _skip(t: float) -> dict[str, Any]:
    return {"skip": whole_number("strength", int(t) if t == int(t) else t, least=1)}


_ANY = ("SGC", "GCN", "GAT")
_SYMMETRIC = {"adjacency": "sym"}
_OURS = {
    "none": Method(models=_ANY),
    "PN": _pair_norm("PN"),
    "PN-SI": _pair_norm("PN-SI"),
    "PN-SCS": _pair_norm("PN-SCS"),
    "PN-degree": _norm("PN-degree", 1.0, 10.0, models=("SGC", "GCN"), settings=_SYMMETRIC),
    "PN-SI-degree": _norm("PN-SI-degree", 1.0, 10.0, models=("SGC", "GCN"), settings=_SYMMETRIC),
    "MeanSubtraction": _norm("MeanSubtraction", models=_ANY),
    "NodeNorm": _norm("NodeNorm", 2.0, 1.0, models=_ANY),
    "BatchNorm": _norm("BatchNorm"),
    "LayerNorm": _norm("LayerNorm"),
    "LayerNorm-graph": _norm("LayerNorm-graph"),
    "GraphNorm": _norm("GraphNorm"),
    "GraphNormV2": _norm("GraphNormV2"),
    "DiffGroupNorm": _norm("DiffGroupNorm", 0.01, 0.001),
    "ContraNorm": _norm("ContraNorm", 0.5, 0.2, quadratic=True),
    "Skip": Method("t", (1.0, 2.0), fields=_skip),
    # As in the authors' code: the norm follows the sum, before the activation.
    "Residual": Method(norm=_batch_norm, options=lambda _: {"residual": True, "order": "before"}),
    "JK-concat": Method(options=lambda _: {"jump": "concat"}),
    "JK-max": Method(options=lambda _: {"jump": "max"}),
    "DropEdge": Method("rate", (0.5, 0.2), ("GCN",), options=lambda rate: {"drop_edge": rate}),
    "GCNII": Method("alpha", (0.1, 0.5), ("GCN",), model=GCNII, settings=_SYMMETRIC),
    "APPNP": Method("alpha", (0.1, 0.2), ("GCN",), model=APPNP, settings=_SYMMETRIC),
    "SMPNN": Method(models=("GCN",), model=SMPNN, settings=_SYMMETRIC),
    "G2": Method(models=("GCN",), model=G2, settings=_SYMMETRIC),
}
METHODS: dict[str, Method] = dict(_OURS)
"""All known methods by the name under which their trials are stored."""


def register(
    name: str,
    factory: Callable[..., nn.Module],
    *,
    kind: str | None = None,
    version: str | None = None,
    parameter: str = "strength",
    grid: tuple[float, ...] | None = None,
    models: tuple[str, ...] = ("GCN", "GAT"),
) -> str:
    """Register a method: a norm after the activation of every hidden layer, or a whole model.

    Args:
        name: for ``Spec(method=name)``, tables and figures.
        factory: of a norm: called with the width of a layer, and, where there is a ``grid``, with the
            strength; returns a module over ``[nodes, features]``, of which every trial and layer has one of
            its own. Of a model: called as ``factory(in_channels, out_channels,
            num_layers=, hidden_channels=, dropout=)``, and,
            where there is a ``grid``, with the strength by its name; returns a module that makes logits of
            ``x, edge_index``, of which every trial has one. Worker processes must be able to import it: a
            class or function at the top of a module.
        kind: ``"norm"``, or ``"model"``, which then replaces the GCN. Default: the factory's
            attribute of this name, else a norm.
        version: part of the name under which trials are stored; change it with the module. Default: the
            factory's attribute of this name, else ``"1"``.
        parameter: what the strength is called.
        grid: values to tune the strength over, the usual one first; empty where there is none. Default: the
            factory's attribute of this name, else empty.
        models: among ``"GCN"`` and ``"GAT"``, that a norm supports.

    Returns:
        The name under which trials are stored, such as ``"Mine@1"``.

    Example:
        >>> register("Dropped", nn.Identity, version="2")
        'Dropped@2'
    """
    if name in _OURS:
        problem = f"there is a method {name!r} already"
        raise PairNormError(problem, code="name-taken", value=name, expected="another name")
    if not name or not name.isprintable() or "@" in name:
        problem = f"a method is named {quoted(name)}"
        expected = "a name that can be printed, without an @"
        raise PairNormError(problem, code="not-a-name", value=name, expected=expected)
    kind = one_of("kind", getattr(factory, "kind", "norm") if kind is None else kind, ("norm", "model"))
    version = getattr(factory, "version", "1") if version is None else version
    grid = getattr(factory, "grid", ()) if grid is None else grid
    key = f"{name}@{version}"
    METHODS[key] = Method(
        parameter if grid else "",
        tuple(map(float, grid)),
        ("GCN",) if kind == "model" else tuple(one_of("model", model, ("GCN", "GAT")) for model in models),
        norm=partial(_own_norm, factory, bool(grid)) if kind == "norm" else None,
        model=partial(_own_model, factory) if kind == "model" else None,
    )
    _LATEST[name] = key
    return key


_LATEST: dict[str, str] = {}
"""The name with version of every registered method."""


def _own_norm(
    make: Callable[..., nn.Module], tuned: bool, features: int, trials: int, strength: float
) -> nn.Module:
    made = partial(make, *((features, strength) if tuned else (features,)))
    expected = "a module over [nodes, features], made from the width and, with a grid, the strength"
    _try(made, (torch.zeros(3, features),), features, expected)
    return PerTrial(made, trials)


def _own_model(
    make: Callable[..., nn.Module], in_channels: int, out_channels: int, *, num_layers: int,
    hidden_channels: int, dropout: float, adjacency: Normalization, num_models: int, **strength: float,
) -> ModelPerTrial:  # fmt: skip
    sizes = {"num_layers": num_layers, "hidden_channels": hidden_channels}
    made = partial(make, in_channels, out_channels, **sizes, dropout=dropout, **strength)
    expected = "a model(x, edge_index), made from in_channels, out_channels, num_layers=, "
    expected += "hidden_channels= and dropout="
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    _try(made, (torch.zeros(3, in_channels), path), out_channels, expected)
    return ModelPerTrial(made, num_models, dropout, adjacency)


def _try(made: partial[nn.Module], given: tuple[Tensor, ...], width: int, expected: str) -> None:
    """Raise an error unless the module gives three nodes ``width`` features each."""
    try:
        with torch.no_grad():
            shape = tuple(made().eval()(*given).shape)
        if shape == (3, width):
            return
        problem, cause = f"makes {shape} of 3 nodes, not {(3, width)}", None
    except Exception as error:  # whatever a user's module may raise
        problem, cause = f"does not work on {given[0].size(1)} features ({error!r})", error
    problem = f"method {getattr(made.func, '__name__', made.func)} {problem}"
    raise PairNormError(problem, code="method-failed", value=made.args, expected=expected) from cause


def stored_name(what: str, name: Any) -> str:
    """Return the name under which the trials of a method are stored. Imports nothing.

    Args:
        what: name of the argument, for the error.
        name: of a method in ``METHODS``; of a registered method, which then gets its version; or
            ``"name@version"`` as it is in a store, perhaps of a method that only another process registered.

    Raises:
        PairNormError: there is no such method, or it must be imported first.
    """
    if isinstance(name, str):
        if name in METHODS or ("@" in name and name.isprintable()):
            return name
        if name in _LATEST:
            return _LATEST[name]
        if ":" in name or name in entry_points(group=GROUP).names:
            raise _not_imported(name)
    return one_of(what, name, [*_OURS, *_LATEST])


def import_method(name: str) -> str:
    """Import and register a method, and return the name under which its trials are stored.

    Text in a store or a spec never imports code; only this function and ``register`` make a method known.

    Args:
        name: ``"package.module:attribute"`` of a factory of norms or models, which may have the attributes
            ``kind``, ``version`` and ``grid``, see ``register``; the name of an entry point in the group
            ``pairnorm.methods``; or a method that is known already.

    Example:
        >>> import_method("torch.nn:Identity")
        'torch.nn:Identity@1'
    """
    if isinstance(name, str) and name not in METHODS and name not in _LATEST and "@" not in name:
        paths = [name] if ":" in name else [entry.value for entry in entry_points(group=GROUP, name=name)]
        if paths:
            register(name, _import_factory(paths[0]))
    return stored_name("method", name)


def _not_imported(name: str) -> PairNormError:
    return PairNormError(
        f"method {quoted(name)} is not imported: text in a store or a spec never imports code",
        code="not-imported",
        value=name,
        hint="If you trust it, allow it on the command line with "
        f"--method {name.rpartition('@')[0] or name}, or in Python with pairnorm.train.import_method.",
    )


def _import_factory(path: str) -> Callable[..., nn.Module]:
    module, _, attribute = path.partition(":")
    try:
        factory: Callable[..., nn.Module] = attrgetter(attribute)(import_module(module))
    except (ImportError, AttributeError, ValueError) as error:
        problem = f"method {path} cannot be imported ({error})"
        expected = "package.module:attribute of a factory of norms or models"
        raise PairNormError(problem, code="not-importable", value=path, expected=expected) from error
    return factory


def find_method(name: str) -> Method:
    """Return the method of a stored name.

    Raises:
        PairNormError: this process knows no such method, or another version of it.
    """
    if name in METHODS:
        return METHODS[name]
    if (known := _LATEST.get(name.rpartition("@")[0])) is not None:
        problem = f"method {name!r} is registered as {known!r}"
        hint = "Register the version that the trials were computed with."
        raise PairNormError(problem, code="other-version", value=name, expected=known, hint=hint)
    raise _not_imported(name)


def registered_methods(names: Iterable[str]) -> dict[str, Method]:
    """Return the user's methods among some names, for worker processes to ``add_methods``."""
    return {name: METHODS[name] for name in names if name in METHODS and name not in _OURS}


def add_methods(methods: Mapping[str, Method]) -> None:
    """Add the methods that another process has registered."""
    METHODS.update(methods)
