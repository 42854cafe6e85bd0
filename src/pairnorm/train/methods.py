"""The registry of methods against oversmoothing, the package's and the user's, for ``Spec.method``."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from pairnorm.base.errors import PairNormError, one_of, quoted, whole_number
from pairnorm.nn import APPNP, G2, GAT, GCN, GCNII, SMPNN
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.layers import Features
from pairnorm.nn.norms import NORMS, make_norm
from pairnorm.nn.pair_norm import MODES
from pairnorm.nn.propagate import Normalization, normalized_adjacency
from pairnorm.nn.sparse import SparseMatrix

if TYPE_CHECKING:
    from pairnorm.train.spec import Spec

GROUP = "pairnorm.methods"
"""The group of entry points of packages with methods: a name, and the factory of a norm or a model."""


# Jobs may run in several threads, which share torch's generator.
GENERATOR = threading.Lock()


class PerTrial(nn.Module):
    """Copies of a user's module, one per model: copy t gets ``x[:, t]`` of ``[nodes, models, features]``.

    Parameters and buffers are stacked along a leading trial axis, as those of every model here.
    """

    def __init__(self, make: Callable[[], nn.Module], num_models: int) -> None:
        super().__init__()
        self._make, self._template = make, [make()]  # in a list, so that its parameters are not registered
        parameters, buffers = stack_module_state([make() for _ in range(num_models)])
        self._names, self._buffer_names = list(parameters), list(buffers)
        self.stacked = nn.ParameterList(value.detach() for value in parameters.values())
        for number, value in enumerate(buffers.values()):
            self.register_buffer(f"buffer_{number}", value)
        self.num_models = num_models

    def _state(self) -> dict[str, Tensor]:
        """Return the stacked parameters and buffers by their names in the module."""
        buffers = (self.get_buffer(f"buffer_{number}") for number in range(len(self._buffer_names)))
        return dict(zip([*self._names, *self._buffer_names], [*self.stacked, *buffers], strict=True))

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Initialize every copy again; with seeds, the weights of a copy depend on its seed alone."""
        for trial in range(self.num_models):
            forked = torch.random.fork_rng(devices=[], enabled=seeds is not None)
            with GENERATOR, forked, torch.no_grad():
                if seeds is not None:
                    torch.default_generator.manual_seed(seeds[trial])
                copy = self._make()
                values = {**dict(copy.named_parameters()), **dict(copy.named_buffers())}
                for name, stacked in self._state().items():
                    stacked[trial] = values[name]

    @property
    def module(self) -> nn.Module:
        """The template module, which computes each copy with the copy's parameters and buffers."""
        return self._template[0].train(self.training)

    def call(self, trial: int, *inputs: Any) -> Any:
        """Return the output of one copy."""
        state = {name: stacked[trial] for name, stacked in self._state().items()}
        return functional_call(self.module, state, inputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of all copies for ``[nodes, models, features]``."""
        return torch.stack([self.call(trial, x[:, trial]) for trial in range(self.num_models)], 1)


class ModelPerTrial(PerTrial):
    """Copies of a user's model, which train like the models of ``pairnorm.nn``.

    On a CPU the random numbers of a copy (its dropout) depend on the keys of its own trial. On CUDA they come
    from torch's generator, since reading a key there would be a synchronization.

    Args:
        make: makes the model; ``model(x, edge_index)`` takes dense features ``[nodes, features]`` and the
            edges without self-loops, and returns logits ``[nodes, classes]``.
        num_models: number of copies.
        dropout: of the model.
    """

    num_keys, drop_edge = 1, 0.0

    def __init__(self, make: Callable[[], nn.Module], num_models: int, dropout: float = 0.0) -> None:
        super().__init__(make, num_models)
        self.dropout = dropout

    def convolutions(self) -> list[nn.Module]:
        """Return the graph convolutions that all copies share, for hooks; none if none is recognized."""
        try:
            return [*graph_convolutions(self.module).values()]
        except PairNormError:
            return []

    def forward(  # type: ignore[override]
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> Tensor:
        """Return logits ``[nodes, models, classes]``, as ``GCN`` does, with ``keys`` ``[1, 2, models]``."""
        if not isinstance(adjacency, SparseMatrix):
            nodes = x.shape[0] if isinstance(x, Tensor) else x.num_rows
            adjacency = normalized_adjacency(adjacency, num_nodes=nodes)
        pattern, logits = adjacency.pattern, []
        if "edge_index" not in pattern.derived:  # as in PyG, from source to target, without self-loops
            edges = torch.stack([pattern.column, pattern.row]).long()
            pattern.derived["edge_index"] = edges[:, edges[0] != edges[1]]
        for trial, features in enumerate(_dense_by_trial(x, self.num_models)):
            with _drawn_from(None if keys is None or not self.training else keys[0, 0, trial]):
                logits.append(self.call(trial, features, pattern.derived["edge_index"]))
        return torch.stack(logits, 1)

    def hidden_and_logits(
        self, x: Features, adjacency: Tensor | SparseMatrix, keys: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the last graph convolution, ``[nodes, models, ...]``, and the logits.

        If no convolution is recognized, the logits are returned for both.
        """
        inputs: list[Tensor] = []
        handles = [
            last.register_forward_pre_hook(lambda module, args: inputs.extend(args[:1]))
            for last in self.convolutions()[-1:]
        ]
        try:
            logits = self(x, adjacency, keys)
        finally:
            for handle in handles:
                handle.remove()
        calls = len(inputs) // self.num_models  # a convolution may be called for several layers
        return torch.stack(inputs[calls - 1 :: calls], 1) if calls else logits, logits


def _dense_by_trial(x: Features, num_models: int) -> Iterable[Tensor]:
    """Yield the features of every trial, dense [nodes, features]; those that trials share only once made."""
    if isinstance(x, SparseMatrix) and x.values.dim() == 2:
        return (SparseMatrix(x.pattern, values).to_dense() for values in x.values)
    dense = x.to_dense()
    return [dense] * num_models if dense.dim() == 2 else dense.expand(-1, num_models, -1).unbind(1)


@contextmanager
def _drawn_from(key: Tensor | None) -> Iterator[None]:
    """Seed torch's generator with the key of a trial."""
    if key is None or key.is_cuda:
        yield
        return
    with GENERATOR, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(key))
        yield


Model = GCN | GAT | GCNII | APPNP | SMPNN | G2 | ModelPerTrial


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

    @property
    def uses_adjacency(self) -> bool:
        """Whether ``Spec.adjacency`` applies to it: a user's model gets the edges alone."""
        return not isinstance(self.model, partial)

    def arguments(self, spec: "Spec", trials: int) -> dict[str, Any]:
        """Return the arguments of GCN and GAT that it changes."""
        changed = dict(self.options(spec.strength) if self.options else {})
        if self.norm is not None:
            changed["norm"] = partial(self.norm, spec.hidden, trials, spec.strength)
        return changed


def _make_named_norm(name: str, features: int, trials: int, strength: float) -> nn.Module:
    """Make a norm of ``pairnorm.nn.norms``."""
    parameter = NORMS[name].parameter
    return make_norm(name, features, trials, **({} if parameter is None else {parameter: strength}))


def _norm_method(name: str, *grid: float, **more: Any) -> Method:
    """Return the method that adds a norm of ``pairnorm.nn.norms``."""
    return Method(NORMS[name].parameter or "", grid, norm=partial(_make_named_norm, name), **more)


def _pair_norm_method(mode: str) -> Method:
    """Return the method that a mode of PairNorm is."""
    return Method("scale", (1.0, 10.0), _ANY, fields=lambda scale: {"norm": mode, "scale": scale})


def _skip_field(t: float) -> dict[str, Any]:
    """Return the field of a spec that holds the length of skips."""
    return {"skip": whole_number("strength", int(t) if t == int(t) else t, least=1)}


_ANY = ("SGC", "GCN", "GAT")
_SYMMETRIC = {"adjacency": "sym"}
METHODS: dict[str, Method] = {
    "none": Method(models=_ANY),
    "PN": _pair_norm_method("PN"),
    "PN-SI": _pair_norm_method("PN-SI"),
    "PN-SCS": _pair_norm_method("PN-SCS"),
    "PN-degree": _norm_method("PN-degree", 1.0, 10.0, models=("SGC", "GCN"), settings=_SYMMETRIC),
    "PN-SI-degree": _norm_method("PN-SI-degree", 1.0, 10.0, models=("SGC", "GCN"), settings=_SYMMETRIC),
    "MeanSubtraction": _norm_method("MeanSubtraction", models=_ANY),
    "NodeNorm": _norm_method("NodeNorm", 2.0, 1.0, models=_ANY),
    "BatchNorm": _norm_method("BatchNorm"),
    "LayerNorm": _norm_method("LayerNorm"),
    "LayerNorm-graph": _norm_method("LayerNorm-graph"),
    "GraphNorm": _norm_method("GraphNorm"),
    "GraphNormV2": _norm_method("GraphNormV2"),
    "DiffGroupNorm": _norm_method("DiffGroupNorm", 0.01, 0.001),
    "ContraNorm": _norm_method("ContraNorm", 0.5, 0.2, quadratic=True),
    "Skip": Method("t", (1.0, 2.0), fields=_skip_field),
    # As in the authors' code: the norm follows the sum, before the activation.
    "Residual": _norm_method("BatchNorm", options=lambda _: {"residual": True, "order": "before"}),
    "JK-concat": Method(options=lambda _: {"jump": "concat"}),
    "JK-max": Method(options=lambda _: {"jump": "max"}),
    "DropEdge": Method("rate", (0.5, 0.2), ("GCN",), options=lambda rate: {"drop_edge": rate}),
    "GCNII": Method("alpha", (0.1, 0.5), ("GCN",), model=GCNII, settings=_SYMMETRIC),
    "APPNP": Method("alpha", (0.1, 0.2), ("GCN",), model=APPNP, settings=_SYMMETRIC),
    "SMPNN": Method(models=("GCN",), model=SMPNN, settings=_SYMMETRIC),
    "G2": Method(models=("GCN",), model=G2, settings=_SYMMETRIC),
}
"""All known methods by the name under which their trials are stored; a user's have a version in it."""


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
            strength; returns a module over ``[nodes, features]``; every trial and layer has its own.
            Of a model: called as ``factory(in_channels, out_channels, num_layers=,
            hidden_channels=, dropout=)``, and, where there is a ``grid``, with the strength by its name;
            returns a module that makes logits of ``x, edge_index``; every trial has its own. Worker
            processes must be able to import it: a class or function at the top of a module.
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
    if name in METHODS and "@" not in name:
        problem = f"there is a method {name!r} already"
        raise PairNormError(problem, code="name-taken", value=name, expected="another name")
    if not name or not name.isprintable() or "@" in name:
        problem, expected = f"a method is named {quoted(name)}", "a name that can be printed, without an @"
        raise PairNormError(problem, code="not-a-name", value=name, expected=expected)
    kind = one_of("kind", getattr(factory, "kind", "norm") if kind is None else kind, ("norm", "model"))
    version = getattr(factory, "version", "1") if version is None else version
    grid = getattr(factory, "grid", ()) if grid is None else grid
    key = f"{name}@{version}"
    METHODS.pop(key, None)  # the version that was registered last is the one of the plain name
    METHODS[key] = Method(
        parameter if grid else "",
        tuple(map(float, grid)),
        ("GCN",) if kind == "model" else tuple(one_of("model", model, ("GCN", "GAT")) for model in models),
        norm=partial(_make_own_norm, factory, bool(grid)) if kind == "norm" else None,
        model=partial(_make_own_model, factory) if kind == "model" else None,
    )
    return key


def _registered() -> dict[str, str]:
    """Return the name with version of every registered method, the last one where there are several."""
    return {key.rpartition("@")[0]: key for key in METHODS if "@" in key}


def _make_own_norm(
    make: Callable[..., nn.Module], tuned: bool, features: int, trials: int, strength: float
) -> nn.Module:
    """Make one norm per trial from a user's factory, after a forward pass over three nodes."""
    made = partial(make, *((features, strength) if tuned else (features,)))
    expected = "a module over [nodes, features], made from the width and, with a grid, the strength"
    _try(made, (torch.zeros(3, features),), features, expected)
    return PerTrial(made, trials)


def _make_own_model(
    make: Callable[..., nn.Module], in_channels: int, out_channels: int, *, num_layers: int,
    hidden_channels: int, dropout: float, adjacency: Normalization, num_models: int, **strength: float,
) -> ModelPerTrial:  # fmt: skip
    """Make one model per trial from a user's factory, after a forward pass on a path of three nodes."""
    sizes = {"num_layers": num_layers, "hidden_channels": hidden_channels}
    made = partial(make, in_channels, out_channels, **sizes, dropout=dropout, **strength)
    expected = "a model(x, edge_index), made from in_channels, out_channels, num_layers=, "
    expected += "hidden_channels= and dropout="
    path = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    _try(made, (torch.zeros(3, in_channels), path), out_channels, expected)
    return ModelPerTrial(made, num_models, dropout)


def _try(made: partial[nn.Module], inputs: tuple[Tensor, ...], width: int, expected: str) -> None:
    """Run a user's module on three nodes; raise an error unless it returns ``width`` features for each."""
    try:
        with torch.no_grad():
            shape = tuple(made().eval()(*inputs).shape)
        if shape == (3, width):
            return
        problem, cause = f"makes {shape} of 3 nodes, not {(3, width)}", None
    except Exception as error:  # whatever a user's module may raise
        problem, cause = f"does not work on {inputs[0].size(1)} features ({error!r})", error
    problem = f"method {getattr(made.func, '__name__', made.func)} {problem}"
    raise PairNormError(problem, code="method-failed", value=made.args, expected=expected) from cause


def stored_name(what: str, name: Any) -> str:
    """Return the name under which the trials of a method are stored. Imports nothing.

    A registered method gets its version. ``"name@version"`` stays: a store may have methods of others.
    """
    if isinstance(name, str):
        if name in METHODS or ("@" in name and name.isprintable()):
            return name
        if (key := _registered().get(name)) is not None:
            return key
        if ":" in name or name in entry_points(group=GROUP).names:
            raise _not_imported(name)
        if name.lower() == "pairnorm":
            expected = f"a mode of it: {', '.join(map(repr, MODES))}"
            raise PairNormError(f"{what} is {name!r}", code="unknown-choice", value=name, expected=expected)
    return one_of(what, name, [*(key for key in METHODS if "@" not in key), *_registered()])


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
    if isinstance(name, str) and name not in {*METHODS, *_registered()} and "@" not in name:
        paths = [name] if ":" in name else [entry.value for entry in entry_points(group=GROUP, name=name)]
        for path in paths[:1]:
            module, _, attribute = path.partition(":")
            try:
                factory = attrgetter(attribute)(import_module(module))
            except (ImportError, AttributeError, ValueError) as error:
                problem = f"method {path} cannot be imported ({error})"
                expected = "package.module:attribute of a factory of norms or models"
                raise PairNormError(problem, code="not-importable", value=path, expected=expected) from error
            register(name, factory)
    return stored_name("method", name)


def _not_imported(name: str) -> PairNormError:
    """Return the error about a method that this process does not know."""
    problem = f"method {quoted(name)} is not imported: text in a store or a spec never imports code"
    hint = f"If you trust it, allow it on the command line with --method {name.rpartition('@')[0] or name}, "
    hint += "or in Python with pairnorm.train.import_method."
    return PairNormError(problem, code="not-imported", value=name, hint=hint)


def find_method(name: str) -> Method:
    """Return the method of a stored name, unless this process knows no such method or version."""
    if name in METHODS:
        return METHODS[name]
    if (known := _registered().get(name.rpartition("@")[0])) is not None:
        problem = f"method {name!r} is registered as {known!r}"
        hint = "Register the version that the trials were computed with."
        raise PairNormError(problem, code="other-version", value=name, expected=known, hint=hint)
    raise _not_imported(name)
