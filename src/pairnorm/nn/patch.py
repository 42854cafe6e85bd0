"""Put PairNorm into any GNN from outside: no change to its code or its parameters."""

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of
from pairnorm.nn.find_convolutions import graph_convolutions, is_pair_norm
from pairnorm.nn.find_places import Place, find_places
from pairnorm.nn.pair_norm import Mode, PairNorm
from pairnorm.nn.patch_hooks import (
    ACTIVE,
    PlacedPairNorm,
    normalize_inputs,
    normalize_output,
    refuse_call,
    remove_hooks,
)

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

CHILD = "add_pair_norm"
"""The name of the patch among the children of a model: an error about weights then says what is missing."""
_OWN_FORWARD = "_forward_without_pair_norm"
_RESOLVING = threading.Lock()


def add_pair_norm(
    model: nn.Module, scale: float = 1.0, mode: Mode = "PN-SI", layers: Sequence[str] | None = None,
    batch: str | int | None = "batch", process_group: "ProcessGroup | None" = None, *,
    at: Sequence[str] | None = None, track_running_stats: bool = False,
    example_inputs: Sequence[Any] | Mapping[str, Any] | None = None,
) -> "PairNormPatch":  # fmt: skip
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
    model = _unwrap(model)
    norm = PairNorm(scale, mode, process_group=process_group, track_running_stats=track_running_stats)
    if at is None:
        convolutions = graph_convolutions(model, layers)
    _check_unnormalized(model, mode)
    patch = PairNormPatch(model, norm, batch, layers)
    model.add_module(CHILD, patch)
    if "forward" in model.__dict__:  # as in PyG's Sequential; it would hide that of the class
        model.__dict__[_OWN_FORWARD] = model.__dict__.pop("forward")
    base: Any = type(model)  # mypy takes no class of modules for hashable
    model.__class__ = _patched_class(base)
    _forget_compiled()
    try:
        if at is not None:
            patch._install([_named_place(model, text) for text in at], dict.fromkeys(at, "named"))
        elif isinstance(example_inputs, Mapping):
            patch._resolve(model, (), example_inputs)
        elif example_inputs is not None:
            patch._resolve(model, tuple(example_inputs), {})
        else:
            for convolution in convolutions.values():
                convolution.register_forward_pre_hook(refuse_call, prepend=True)
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
        self._takes_any = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self._arguments = [p.name for p in parameters if p.kind in (0, 1, p.KEYWORD_ONLY)]

    def remove(self) -> None:
        """Remove PairNorm, and restore the model exactly."""
        (model,) = self._owner
        if model._modules.pop(CHILD, None) is None:
            return
        model.__class__ = type(model).__mro__[1]
        if _OWN_FORWARD in model.__dict__:
            model.__dict__["forward"] = model.__dict__.pop(_OWN_FORWARD)
        for module in model.modules():
            for where in ("before", "after"):
                module._modules.pop(f"pair_norm_{where}", None)
            remove_hooks(module)
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
        ours = self.get_extra_state()
        if state != ours:
            trained = ", ".join(f"{key}={state.get(key)!r}" for key in ours if state.get(key) != ours[key])
            problem = f"these weights were trained with PairNorm of other settings: {trained}"
            hint = "Give add_pair_norm the same settings."
            raise PairNormError(problem, code="other-norm", value=trained, hint=hint)

    def _install(self, places: list[Place], reasons: dict[str, str]) -> None:
        (model,), (norm,) = self._owner, self._norm
        for module in model.modules():
            remove_hooks(module)
        settings = (norm.scale, norm.mode, norm.eps, norm.process_group, norm.track_running_stats)
        for place in places:
            module, placed = model.get_submodule(place.name), PlacedPairNorm(*settings)
            placed.is_one_graph, placed.inputs = self._batch is None, place.inputs
            placed.train(module.training)
            device = next((x.device for x in (*module.parameters(), *model.parameters())), None)
            module.add_module(f"pair_norm_{place.where}", placed.to(device))
            if place.where == "before":
                module.register_forward_pre_hook(normalize_inputs, prepend=True, with_kwargs=True)
            else:
                module.register_forward_hook(normalize_output, prepend=True)
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
                model, convolutions, lambda: _run_original(model, args, kwargs), is_shared_allowed
            )
        finally:
            ACTIVE.is_observing = False
        if self._batch == "batch" and self._call(args, kwargs)[0] is None:
            for name, value in {**dict(zip(self._arguments, args, strict=False)), **kwargs}.items():
                is_index = _is_index(value) and len(value) == num_nodes
                if is_index and 1 < len(value.unique()) < num_nodes:  # a batch vector under another name
                    raise _unnamed_batch(name, f"{name!r} has an integer for each node")
        if not places:
            _warn_without_effect(model, list(reasons))
        self._install(places, reasons)

    def _call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the batch vector of a call, or one for each node type, and the batch size."""
        arguments = dict(zip(self._arguments, args, strict=False))
        arguments.update(kwargs)
        name, size = self._batch, arguments.get("batch_size")
        if name is None:
            return None, size
        if isinstance(name, int):
            return args[name] if name < len(args) else None, size
        first, keys = next(iter(arguments.values()), None), (name, f"{name}_dict")
        for key in keys:
            if arguments.get(key) is not None:
                return arguments[key], size
            if not isinstance(first, (Tensor, Mapping)) and getattr(first, key, None) is not None:
                batch = getattr(first, key)
                return (None if isinstance(batch, Mapping) and not batch else batch), size
        for position in range(len(self._arguments), len(args) if self._takes_any else 0):
            if _is_index(args[position]):
                problem = f"argument {position} has no name and is a vector of integers"
                raise _unnamed_batch(position, problem)
        if name != "batch" and not any(key in self._arguments or key in arguments for key in keys):
            problem = f"{type(self._owner[0]).__name__} was given no {name!r}"
            expected = f"one of its arguments {self._arguments}, or an attribute of the first"
            raise PairNormError(problem, code="unknown-argument", value=name, expected=expected)
        return None, size


@functools.cache
def _patched_class(base: Any) -> type[nn.Module]:
    """Return a subclass whose ``forward`` passes the batch vector of a call to the places inside."""

    @functools.wraps(base.forward, assigned=("__doc__",))  # torch.compile imports the module it names
    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        patch: Any = self._modules[CHILD]
        if not patch.is_resolved:
            patch._resolve(self, args, kwargs)
        call, before = patch._call(args, kwargs), ACTIVE.call
        ACTIVE.call = call
        try:
            return _run_original(self, args, kwargs)
        finally:
            ACTIVE.call = before

    def load(self: nn.Module, state: dict[str, Any], prefix: str, *args: Any) -> None:
        patch: Any = self._modules[CHILD]
        known = state.get(f"{prefix}{CHILD}._extra_state")
        if known and known["places"] and not patch.is_resolved:  # weights know the places before it has run
            places = [Place(where, name, tuple(map(tuple, paths))) for where, name, paths in known["places"]]
            patch._install(places, known["reasons"])
        base._load_from_state_dict(self, state, prefix, *args)

    members = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__reduce_ex__": lambda self, protocol: (_new_patched, (base,), self.__getstate__()),
        "forward": forward,
        "_load_from_state_dict": load,
        "_unpatched_class": base,
    }
    return type(base.__name__, (base,), members)


def _run_original(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    forward: Any = model.__dict__.get(_OWN_FORWARD)
    if forward is not None:
        return forward(*args, **kwargs)
    # torch.export traces modules through subclasses of their own, so that the bases of a type say nothing.
    original: Any = model._unpatched_class
    return original.forward(model, *args, **kwargs)


def _new_patched(base: Any) -> nn.Module:
    """Return an empty patched module of a class, for ``copy.deepcopy`` and ``pickle``."""
    patched = _patched_class(base)
    return patched.__new__(patched)


def _check_unnormalized(model: nn.Module, mode: str) -> None:
    for name, module in model.named_modules():
        owner = name.removesuffix(CHILD).removesuffix(".") if isinstance(module, PairNormPatch) else name
        where = f"{owner!r} of {type(model).__name__}" if owner else type(model).__name__
        if type(module).__module__ == "pairnorm.nn.models":
            problem, hint = f"{where} is a model of this package", "Build it with {norm} instead."
        elif isinstance(module, PairNormPatch):
            problem, hint = f"{where} is patched already", "Call remove() of its handle."
        elif is_pair_norm(module):
            problem = f"{where} is PairNorm already"
            hint = "Build the model without it, or leave it as it is."
        else:
            continue
        raise PairNormError(problem, code="already-normalized", value=owner, hint=hint, norm=mode)


def _named_place(model: nn.Module, text: str) -> Place:
    where, _, name = str(text).partition(" ")
    names = [name for name, _ in model.named_modules() if name and name != CHILD]
    if where not in ("before", "after") or not name:
        expected = f"'before' or 'after' and the name of a module, such as 'after {names[0]}'"
        raise PairNormError(f"at has {text!r}", code="unknown-choice", value=text, expected=expected)
    one_of("a module in at", name, names)
    module = model.get_submodule(name)
    if type(module).__name__ == "Sequential":
        inside = list(module._modules)[0 if where == "before" else -1]
        problem = f"{name} is a {type(module).__name__}, which would run PairNorm inside it"
        raise PairNormError(problem, code="unknown-choice", value=text, expected=f"{where} {name}.{inside}")
    return Place(where, name)


def _is_index(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dim() == 1 and value.dtype in (torch.int32, torch.int64)


def _unnamed_batch(which: str | int, problem: str) -> PairNormError:
    problem = f"{problem}, and PairNorm would take all nodes for one graph"
    hint = "If it says which graph a node belongs to, pass {batch} to add_pair_norm, else batch=None."
    return PairNormError(problem, code="unnamed-batch", value=which, hint=hint, batch=which)


def _warn_without_effect(model: nn.Module, convolutions: list[str]) -> None:
    depths = {label: getattr(model.get_submodule(label.partition(" ")[0]), "K", 1) for label in convolutions}
    steps = [f"{label} with K={k}" for label, k in depths.items() if isinstance(k, int) and k > 1]
    inside = f" Inside {', '.join(steps)} it cannot go; see pairnorm.nn.SGC." if steps else ""
    warnings.warn(
        f"add_pair_norm has no effect on {type(model).__name__}: PairNorm goes between graph convolutions, "
        f"and none depends on another ({', '.join(convolutions) or 'none ran'}).{inside}",
        stacklevel=2,
    )


def _unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside a compiled or distributed one."""
    is_wrapper = isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel))
    inner = model.module if is_wrapper else getattr(model, "_orig_mod", None)
    return _unwrap(inner) if isinstance(inner, nn.Module) else model


def _forget_compiled() -> None:
    """Drop compiled code: it does not look again for the hooks of modules."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
