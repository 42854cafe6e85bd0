"""Put PairNorm into any GNN from outside: no change to its code or its parameters.

A patched model has PairNorm modules as children, and hooks that run them. While its ``forward`` runs,
``ACTIVE`` holds the batch vector of the call.
"""

import inspect
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import graph_convolutions, unwrap
from pairnorm.nn.find_places import InputPath, Place, find_places, state_inputs
from pairnorm.nn.pair_norm import Mode, PairNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CHILD = "add_pair_norm"
"""The name of the patch among the children of a model: an error about weights then says what is missing."""
_RESOLVING = threading.Lock()


class _Call(NamedTuple):
    """A call of a patched model: batch vector, or one per node type, batch size, and the call around it."""

    model: nn.Module
    batch: Any
    size: Any
    outer: "_Call | None"


class _Active(threading.local):
    """What each thread is doing; ``torch.compile`` can trace it."""

    def __init__(self) -> None:
        self.call: _Call | None = None
        self.is_observing = False


ACTIVE = _Active()


def is_observing() -> bool:
    """Return whether this thread runs a model only to find the places for PairNorm."""
    return ACTIVE.is_observing


def add_pair_norm(
    model: nn.Module,
    scale: float = 1.0,
    mode: Mode = "PN-SI",
    layers: Sequence[str] | None = None,
    batch: str | int | None = "batch",
    process_group: "ProcessGroup | None" = None,
    *,
    at: Sequence[str] | None = None,
    track_running_stats: bool = False,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
) -> "PairNormPatch":
    """Put PairNorm after every graph convolution of ``model`` but the last; return a handle that removes it.

    The places are found once: from ``example_inputs``, or in the first forward pass, which then runs twice
    from the same random state and the same buffers. From then on the model has ``PairNorm`` modules as
    children of the modules at these places, which run whenever those do. The place after a convolution is

    - the output of a module that returns the states after their first activation function: the activation
      module, the convolution itself where it ends in one, or a block around both;
    - else the input of the next convolution, where nothing but dropout lies between the activation and it.
      Dropout then comes before PairNorm, which makes a difference in training only;
    - else it is ambiguous, as after ``x + relu(conv(x))`` with a function for the activation. An error shows
      the candidates, to be named with ``at``.

    A convolution is the last if no other depends on it. Convolutions that run side by side on the same input
    are one layer. Heads in ``[nodes, heads, features]`` are normalized one by one. Where states are a
    dictionary by node type (``HeteroConv``, ``HGTConv``, ``to_hetero``), every type is normalized separately.

    If ``forward`` receives ``batch``, or a PyG ``Batch`` that has one, every graph is normalized separately.
    Integers for each node under another name are an error until you say what they are. A normalized module
    that runs outside the model's ``forward`` cannot know ``batch``, which is an error unless ``batch=None``.

    The ``state_dict`` has one entry more, ``"add_pair_norm._extra_state"``: weights that were trained with
    PairNorm are not loaded into a model without it, nor the other way round, nor with another scale or mode.

    Args:
        model: Any module with graph convolutions; see ``graph_convolutions``. Of a compiled or distributed
            model, the module inside is changed.
        scale: The paper's s.
        mode: ``"PN"``, ``"PN-SI"`` (the paper's choice for GCN and GAT) or ``"PN-SCS"``.
        layers: The dotted names of the convolutions, where they are not recognized.
        batch: The name of the argument of ``forward`` that holds the graph of each node, or of an attribute
            of the first argument; its position; or None for a model of one graph.
        process_group: The ranks whose rows are one graph; see ``PairNorm``.
        at: Places by hand, such as ``["after convs.0", "before convs.2"]``; no forward pass is needed then.
        track_running_stats: Normalize by running statistics in eval; see ``PairNorm`` and ``calibrate``.
        example_inputs: The positional arguments of ``forward``, or its keyword arguments as a mapping, to
            find the places now.

    >>> class Convolution(nn.Linear):
    ...     def forward(self, x, adjacency):
    ...         return adjacency @ super().forward(x)
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.act, self.second = Convolution(3, 4), nn.ReLU(), Convolution(4, 2)
    ...     def forward(self, x, adjacency):
    ...         return self.second(self.act(self.first(x, adjacency)), adjacency)
    >>> model = Net()
    >>> with add_pair_norm(model, scale=10, example_inputs=(torch.rand(5, 3), torch.eye(5))) as handle:
    ...     print(model.act)
    ReLU(
      (pair_norm_after): PairNorm(scale=10, mode='PN-SI', eps=1e-06)
    )
    >>> handle
    PairNorm(scale=10, mode='PN-SI', eps=1e-06) in Net (removed)
      first: after act (relu)
      second: left alone, the last
    """
    model = unwrap(model)
    norm = PairNorm(scale, mode, process_group=process_group, track_running_stats=track_running_stats)
    convolutions = {} if at is not None else graph_convolutions(model, layers)
    _check_unnormalized(model, mode)
    patch = PairNormPatch(model, norm, batch, layers)
    model.add_module(CHILD, patch)
    model.register_forward_pre_hook(_enter, prepend=True, with_kwargs=True)
    model.register_forward_hook(_leave, always_call=True)
    model.register_load_state_dict_pre_hook(_install_from)
    _forget_compiled()
    try:
        if at is not None:
            patch._install([Place.parse(model, text) for text in at], dict.fromkeys(at, "named"))
        elif isinstance(example_inputs, Mapping):
            patch._resolve(model, (), example_inputs)
        elif example_inputs is not None:
            patch._resolve(model, tuple(example_inputs), {})
        else:
            for convolution in convolutions.values():
                convolution.register_forward_pre_hook(_refuse_call, prepend=True)
    except BaseException:
        patch.remove()
        raise
    return patch


def remove_pair_norm(model: nn.Module) -> None:
    """Remove what ``add_pair_norm`` put into ``model``, for a copy whose handle is not available.

    Args:
        model: A patched model, or a module that contains one; without a patch it stays as it is.
    """
    for module in list(model.modules()):
        if isinstance(module, PairNormPatch):
            module.remove()


class PairNormPatch(nn.Module):
    """PairNorm inside a model, a child of it; removed by ``remove`` or at the end of a ``with`` block.

    Attributes:
        places: Where PairNorm follows each convolution, and why; empty until the places are found.
    """

    def __init__(
        self, model: nn.Module, norm: PairNorm, batch: str | int | None, layers: Sequence[str] | None
    ) -> None:
        super().__init__()
        self.places: dict[str, str] = {}
        self.is_resolved = False
        self._owner, self._norm = (model,), (norm,)  # in a tuple, they do not become children
        self._batch, self._layers = batch, layers
        self._installed: list[Place] = []
        parameters = inspect.signature(model.forward).parameters.values()
        self._arguments = [one.name for one in parameters if one.kind in (0, 1, one.KEYWORD_ONLY)]

    def remove(self) -> None:
        """Take PairNorm out again, which leaves the model exactly as it was."""
        (model,) = self._owner
        if CHILD not in model._modules:
            return
        del model._modules[CHILD]
        for module in model.modules():
            module._modules.pop("pair_norm_before", None)
            module._modules.pop("pair_norm_after", None)
            _remove_hooks(module, (*_MODEL_HOOKS, *_PLACE_HOOKS))
        _forget_compiled()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        (model,), (norm,) = self._owner, self._norm
        removed = "" if CHILD in model._modules else " (removed)"
        lines = [f"{name}: {place}" for name, place in self.places.items()]
        lines = lines or ["the places are found in the first forward pass"]
        return "\n  ".join([f"{norm} in {type(model).__name__}{removed}", *lines])

    def get_extra_state(self) -> dict[str, Any]:
        """Return the settings and the places, which ``state_dict`` includes."""
        (norm,) = self._norm
        settings = {"scale": norm.scale, "mode": norm.mode, "eps": norm.eps}
        return settings | {"places": [tuple(place) for place in self._installed], "reasons": self.places}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Check that weights were trained with the same settings and places."""
        own = self.get_extra_state()
        if state != own:
            trained = ", ".join(f"{key}={state.get(key)!r}" for key in own if state.get(key) != own[key])
            problem = f"these weights were trained with PairNorm of other settings: {trained}"
            hint = "Give add_pair_norm the same settings."
            raise PairNormError(problem, code="other-norm", value=trained, hint=hint)

    def _install(self, places: list[Place], reasons: dict[str, str]) -> None:
        (model,), (norm,) = self._owner, self._norm
        for module in model.modules():
            _remove_hooks(module, _PLACE_HOOKS)
        settings = (norm.scale, norm.mode, norm.eps, norm.process_group, norm.track_running_stats)
        for place in places:
            module, own = model.get_submodule(place.name), _PlacedPairNorm(*settings)
            own.is_one_graph, own.inputs = self._batch is None, place.inputs
            own.train(module.training)
            device = next((x.device for x in (*module.parameters(), *model.parameters())), None)
            module.add_module(f"pair_norm_{place.where}", own.to(device))
            if place.where == "before":
                module.register_forward_pre_hook(_normalize_inputs, prepend=True, with_kwargs=True)
            else:
                module.register_forward_hook(_normalize_output, prepend=True)
        self._installed, self.places, self.is_resolved = places, reasons, True

    def _resolve(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Find the places in an observed forward pass that leaves no trace, and put PairNorm there."""
        if model is not self._owner[0]:
            problem = f"a replica of {type(model).__name__} cannot find the places for PairNorm"
            hint = "Run the model itself once before, or pass {example_inputs} to add_pair_norm."
            raise PairNormError(problem, code="unresolved", hint=hint, example_inputs=...)
        with _RESOLVING:
            if not self.is_resolved:
                # A compiled model is observed as it is, not through the compiler.
                disable = torch.compiler.disable if "torch._dynamo" in sys.modules else lambda run: run
                disable(self._observe)(model, args, kwargs)

    # The attributes that torch.compiler.disable sets, without the 1.5 s that importing the compiler takes.
    _resolve._torchdynamo_disable = True  # type: ignore[attr-defined]
    _resolve._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "add_pair_norm finds its places in a forward pass: run the model once before, or pass example_inputs"
    )

    def _observe(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        convolutions = graph_convolutions(model, self._layers)
        is_shared_allowed = not self._norm[0].track_running_stats
        ACTIVE.is_observing = True
        try:
            places, reasons, num_nodes = find_places(
                model, convolutions, lambda: model.forward(*args, **kwargs), is_shared_allowed
            )
        finally:
            ACTIVE.is_observing = False
        if self._batch == "batch" and self._find_batch(args, kwargs)[0] is None:
            for name, value in self._name_arguments(args, kwargs).items():
                if _is_batch_vector(value, num_nodes):
                    problem = f"argument {name!r} has an integer for each node; are these graphs?"
                    hint = "If so, pass {batch} to add_pair_norm, else batch=None for one graph."
                    raise PairNormError(problem, code="unnamed-batch", value=name, hint=hint, batch=name)
        if not places:
            warnings.warn(
                f"add_pair_norm has no effect on {type(model).__name__}: PairNorm goes between graph "
                f"convolutions, and none depends on another ({', '.join(reasons) or 'none ran'}). It does "
                "not go between the steps of one convolution, as SGConv with K > 1 has; see pairnorm.nn.SGC.",
                stacklevel=2,
            )
        self._install(places, reasons)

    def _name_arguments(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str | int, Any]:
        """Return the arguments of a call by name, those of ``*args`` by position."""
        names = [*self._arguments, *range(len(self._arguments), len(args))]
        return {**dict(zip(names, args, strict=False)), **kwargs}

    def _find_batch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the batch vector of a call, or one for each node type, and the batch size."""
        given, name = self._name_arguments(args, kwargs), self._batch
        size = given.get("batch_size")
        if name is None or isinstance(name, int):
            return args[name] if name is not None and name < len(args) else None, size
        first, keys = next(iter(given.values()), None), (name, f"{name}_dict")
        for key in keys:
            batch = given.get(key)
            if batch is None and not isinstance(first, (Tensor, Mapping)):
                batch = getattr(first, key, None)
            if batch is not None:
                return (None if isinstance(batch, Mapping) and not batch else batch), size
        if name != "batch" and not any(key in self._arguments or key in given for key in keys):
            problem = f"{type(self._owner[0]).__name__} was given no {name!r}"
            expected = f"one of its arguments {self._arguments}, or an attribute of the first"
            raise PairNormError(problem, code="unknown-argument", value=name, expected=expected)
        return None, size


def _enter(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Find the places if they are not known yet, and set the batch vector of the call: a forward pre-hook."""
    patch: Any = model._modules[CHILD]
    if not patch.is_resolved:
        patch._resolve(model, args, kwargs)
    batch, size = patch._find_batch(args, kwargs)
    ACTIVE.call = _Call(model, batch, size, ACTIVE.call)


def _leave(model: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """Forget the batch vector, also after an error: a forward hook."""
    if ACTIVE.call is not None and ACTIVE.call.model is model:
        ACTIVE.call = ACTIVE.call.outer


def _install_from(model: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Put PairNorm where weights had it, in a model that has not run yet: a hook of ``load_state_dict``."""
    patch: Any = model._modules[CHILD]
    known = state.get(f"{prefix}{CHILD}._extra_state")
    if known and known["places"] and not patch.is_resolved:
        places = [Place(where, name, tuple(map(tuple, paths))) for where, name, paths in known["places"]]
        patch._install(places, known["reasons"])


class _PlacedPairNorm(PairNorm):
    """PairNorm in a patched model, which takes the batch vector from the forward pass that runs."""

    is_one_graph = has_seen_batch = False
    inputs: tuple[InputPath, ...] = ()

    def normalize(self, x: Tensor, kind: str = "") -> Tensor:
        """Normalize the states of a node type."""
        if ACTIVE.call is None:
            self._check_without_call()
            return self(x)
        batch, size = ACTIVE.call.batch, ACTIVE.call.size
        if batch is not None and not self.has_seen_batch:
            self.has_seen_batch = True
        if isinstance(batch, Mapping):
            if not kind:
                problem = "there is a batch vector for each node type, and PairNorm at a place without types"
                hint = "Name places where the states are a dictionary: {at}."
                raise PairNormError(problem, code="no-node-type", hint=hint, at=["before ..."])
            batch = batch.get(kind)
        return self(x, batch, size.get(kind) if isinstance(size, Mapping) else size)

    def _check_without_call(self) -> None:
        """Raise an error where the batch vector would be needed and is not known."""
        if self.is_one_graph or (self.track_running_stats and not self.training):
            return
        if torch._C._current_graph_task_id() == -1:
            raise _outside_forward("a module with PairNorm")
        # Activation checkpointing runs modules again during the backward pass.
        if self.has_seen_batch:
            problem = "activation checkpointing recomputes PairNorm, and the batch vector is not known then"
            hint = "Checkpoint the whole model, or write PairNorm into the checkpointed function."
            raise PairNormError(problem, code="batch-in-checkpoint", hint=hint)


def _normalize_output(module: Any, args: tuple[Any, ...], output: Any) -> Any:
    """Normalize what a module returns: a forward hook."""
    norm: _PlacedPairNorm = module.pair_norm_after
    if isinstance(output, Mapping):
        return {kind: norm.normalize(x, kind) for kind, x in output.items()}
    if isinstance(output, tuple):
        return (norm.normalize(output[0]), *output[1:])
    return norm.normalize(output)


def _normalize_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Normalize some inputs of a module, or all its states if none are named: a forward pre-hook."""
    norm: _PlacedPairNorm = module.pair_norm_before
    values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    for key, *inside in norm.inputs or state_inputs(module, args, kwargs):
        value = values.get(key)
        if not inside:
            values[key] = norm.normalize(values[key])
        elif isinstance(value, Mapping):
            kind: Any = inside[0]
            if value.get(kind) is not None:
                values[key] = {**value, kind: norm.normalize(value[kind], kind)}
        elif value is not None:
            items, index = list(value), int(inside[0])
            items[index] = norm.normalize(items[index])
            values[key] = tuple(items)
    return tuple(values[i] for i in range(len(args))), {key: values[key] for key in kwargs}


def _refuse_call(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Raise an error where a convolution runs before the places are found: a forward pre-hook."""
    if not ACTIVE.is_observing:
        raise _outside_forward(type(module).__name__)


_MODEL_HOOKS = (_enter, _leave, _install_from)
_PLACE_HOOKS = (_normalize_output, _normalize_inputs, _refuse_call)


def _remove_hooks(module: nn.Module, functions: tuple[Any, ...]) -> None:
    """Remove hooks from a module, which may be a copy of the one that they were registered for."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks, module._load_state_dict_pre_hooks):
        for key, hook in list(hooks.items()):
            if getattr(hook, "hook", hook) in functions:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)
                module._forward_hooks_always_called.pop(key, None)


def _outside_forward(what: str) -> PairNormError:
    problem = f"{what} ran outside the forward of the patched model, so that the batch vector is not known"
    hint = "Call the patched model, patch the module that you call, or pass {batch} for one graph."
    return PairNormError(problem, code="outside-forward", hint=hint, batch=None)


def _check_unnormalized(model: nn.Module, mode: str) -> None:
    for name, module in model.named_modules():
        owner = name.removesuffix(CHILD).removesuffix(".")
        if type(module).__module__ == "pairnorm.nn.models":
            problem, hint = "a model of this package", "Build it with {norm} instead."
        elif isinstance(module, PairNormPatch):
            problem, hint = "patched already", "Call remove() of its handle."
        elif any(base.__name__ == "PairNorm" for base in type(module).__mro__):
            problem, hint = "PairNorm already", "Build the model without it, or leave it as it is."
        else:
            continue
        where = f"{owner!r} of {type(model).__name__}" if owner else type(model).__name__
        problem = f"{where} is {problem}"
        raise PairNormError(problem, code="already-normalized", value=owner, hint=hint, norm=mode)


def _is_batch_vector(value: Any, num_nodes: int) -> bool:
    """Return whether ``value`` has an integer for each node, neither all the same nor all different."""
    is_index = isinstance(value, Tensor) and value.dim() == 1 and value.dtype in (torch.int32, torch.int64)
    return is_index and len(value) == num_nodes and 1 < len(value.unique()) < num_nodes


def _forget_compiled() -> None:
    """Drop compiled code: it does not look again for the hooks of modules."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
