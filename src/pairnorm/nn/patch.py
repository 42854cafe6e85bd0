"""PairNorm put into any GNN from outside: no change to its code or its parameters."""

import inspect
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.nn.pair_norm import Mode, PairNorm

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

# Left out: sigmoid and softmax, which are gates and attention more often than activations, and functions in
# place such as relu_, whose result nobody need read.
_NAMES = """relu relu6 leaky_relu elu selu celu rrelu prelu gelu silu mish softplus softsign tanh hardtanh
    hardswish tanhshrink softshrink hardshrink"""
_ACTIVATIONS: frozenset[Any] = frozenset(
    getattr(home, name) for home in (F, torch, Tensor) for name in _NAMES.split() if hasattr(home, name)
)
# What PyG's to_hetero calls the copies of a convolution: one for each type of edges, with where these end.
_EDGE_TYPE = re.compile(r"\.[^.]+?__[^.]+__(?P<target>[^.]+?)$")
# A name of the state that a model has with PairNorm only, which says itself what is to be done about it.
MARK = "add_pair_norm"
_BESIDE = "left alone, beside the last"


def add_pair_norm(
    model: nn.Module,
    scale: float = 1.0,
    mode: Mode = "PN-SI",
    layers: Sequence[str] | None = None,
    batch: str | None = "batch",
    process_group: "ProcessGroup | None" = None,
) -> "PairNormPatch":
    """Put PairNorm after every graph convolution of ``model`` but the last; return a handle that removes it.

    The paper's place is after the activation of a convolution and before dropout. PairNorm comes at the first
    of these that there is:

    - the output of the convolution, where it ends in an activation itself;
    - the output of the first activation function that runs after it, as a module or as a function, on as many
      rows as the convolution gave. A norm of the model between the two stays where it is;
    - the input of the next convolution. Without a recognized activation function, dropout thus comes before
      PairNorm, which makes a difference in training only.

    A residual connection adds the normalized branch (``DeepGCNLayer`` with ``"res"`` or ``"dense"``); where
    the activation follows the sum (``"res+"``), the sum itself goes on unchanged. Convolutions that run side
    by side on the same input are one layer. Heads in ``[nodes, heads, features]`` are normalized one by one.
    Where states are a dictionary by node type (``HeteroConv``, ``HGTConv``, ``to_hetero``), every type is
    normalized on its own.

    The last convolution is the last to run. It is taken to be the last one registered until the first forward
    pass; if that shows another, the pass is repeated from the same random state and the same buffers.

    If ``forward`` is given ``batch``, or a PyG ``Batch`` that has one, every graph is normalized on its own.
    Where it gets none, but integers for each node that may well be one by another name, it warns once.
    A convolution called outside the model's ``forward`` (layer-wise ``inference`` in PyG) is an error, and so
    is a model that has PairNorm already. Copies of the model have a patch of their own.

    The ``state_dict`` has one entry more, ``"add_pair_norm"``: weights that were trained with PairNorm are
    not loaded into a model without it, nor the other way round, nor with another scale or mode.

    Args:
        model: any module with graph convolutions; see ``graph_convolutions``.
        scale: the paper's s.
        mode: ``"PN"``, ``"PN-SI"`` (the paper's choice for GCN and GAT) or ``"PN-SCS"``.
        layers: the dotted names of the convolutions, where they are not recognized.
        batch: what the model calls the graph of each node, among the arguments of ``forward`` or the
            attributes of the first; None for a model of one graph.
        process_group: the ranks whose rows are one graph; see ``PairNorm``.

    >>> class Convolution(nn.Linear):
    ...     def forward(self, x, adjacency):
    ...         return adjacency @ super().forward(x)
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.first, self.second = Convolution(3, 4), Convolution(4, 2)
    ...     def forward(self, x, adjacency):
    ...         return self.second(self.first(x, adjacency).relu(), adjacency)
    >>> model = Net()
    >>> with add_pair_norm(model, scale=10) as handle:
    ...     y = model(torch.rand(5, 3), torch.eye(5))
    >>> handle
    PairNorm(scale=10, mode='PN-SI', eps=1e-06) in Net (removed)
      first: after relu
      second: left alone, the last
    """
    convolutions = graph_convolutions(model, layers)
    for name, module in model.named_modules():
        where = f"{name!r} of {type(model).__name__}" if name else type(model).__name__
        if type(module).__module__ == "pairnorm.nn.models":
            problem = f"{where} is a model of this package"
            hint = "Build it with {norm} instead."
            raise PairNormError(problem, code="already-normalized", value=name, hint=hint, norm=mode)
        if any(base.__name__ == "PairNorm" for base in type(module).__mro__):
            problem = f"{where} is PairNorm already"
            hint = "Build the model without it, or leave it as it is."
            raise PairNormError(problem, code="already-normalized", value=name, hint=hint)
        if patch_of(module):
            problem = f"{where} is patched already"
            hint = "Call remove() of its handle or remove_pair_norm."
            raise PairNormError(problem, code="already-normalized", value=name, hint=hint)
    norm = PairNorm(scale, mode, process_group=process_group)
    return PairNormPatch(model, norm, convolutions, batch)


def remove_pair_norm(model: nn.Module) -> None:
    """Remove what ``add_pair_norm`` put into ``model``, for a copy whose handle is not at hand.

    Args:
        model: what was patched, or holds it; where there is nothing to remove, it stays as it is.
    """
    for module in model.modules():
        if patch := patch_of(module):
            patch.remove()


def patch_of(module: nn.Module) -> "PairNormPatch | None":
    """Return what ``add_pair_norm`` put into a module itself, None where it did not."""
    owners = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, PairNormPatch)), None)


class PairNormPatch:
    """PairNorm inside a model: removed by ``remove`` or at the end of a ``with`` block."""

    def __init__(
        self, model: nn.Module, norm: PairNorm, convolutions: dict[str, nn.Module], batch: str | None
    ) -> None:
        self.model, self.norm = model, norm
        self.places = dict.fromkeys(convolutions, "not run yet")
        self._names = {module: name for name, module in convolutions.items()}
        self._arguments = list(inspect.signature(model.forward).parameters)
        self._batch = batch
        self._last = list(convolutions)[-1]
        self._rewind: _Rewind | None = None
        self._settled = False
        self._pass = _Pass(norm, {name: _EDGE_TYPE.sub("", name) for name in convolutions})
        # Without its ranks, of which there may be others next time.
        self._settings = repr(PairNorm(norm.scale, norm.mode, norm.eps))
        # Bytes, which no change of precision touches.
        model.register_buffer(MARK, torch.tensor(list(self._settings.encode()), dtype=torch.uint8))
        self._hooks = [
            model.register_forward_pre_hook(self._before_model, with_kwargs=True),
            model.register_forward_hook(self._after_model, with_kwargs=True, always_call=True),
            model.register_load_state_dict_pre_hook(self._before_loading),
        ]
        for module in self._names:
            self._hooks.append(module.register_forward_pre_hook(self._before_convolution, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._after_convolution))

    def remove(self) -> None:
        """Take PairNorm out again, which leaves the model exactly as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.model._buffers.pop(MARK, None)
        self.model._non_persistent_buffers_set.discard(MARK)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        title = f"{self.norm} in {type(self.model).__name__}{'' if self._hooks else ' (removed)'}"
        return "\n  ".join([title, *(f"{name}: {place}" for name, place in self.places.items())])

    def _before_model(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._settled and not torch.compiler.is_compiling():
            self._rewind = _Rewind(model)
        self._begin(args, kwargs)

    def _after_model(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
    ) -> Any:
        if not self._pass.active:  # the exception on its way is from before the pass
            return output
        calls, places = self._pass.end()
        if output is None or not calls:  # an exception is on its way, or no convolution has run
            return output
        # While torch.compile traces, nothing can be set back: nothing must have changed.
        unchanged = torch.compiler.is_compiling() and not (
            self._settled or (model.training and _counting(model))
        )
        if calls[-1] != self._last and (self._rewind or unchanged):
            self._last = calls[-1]
            if self._rewind:
                self._rewind()
            self._begin(args, kwargs)
            try:
                output = model.forward(*args, **kwargs)
            finally:
                calls, places = self._pass.end()
        if calls[-1] != self._last:
            raise PairNormError(
                f"the last graph convolution to run in {type(model).__name__} was {calls[-1]}",
                code="other-order",
                value=calls[-1],
                expected=f"{self._last}, which PairNorm left alone",
                hint="A model must end in the same one in every pass; if it has buffers and that is not "
                "the one registered last, let it run once before torch.compile.",
            )
        self._settled, self._rewind, self.places = True, None, places
        if self._pass.unused:
            name, self._pass.unused = self._pass.unused, None
            _warn_of_unused(name)
        return output

    def _before_loading(self, model: nn.Module, state: Mapping[str, Any], prefix: str, *_: Any) -> None:
        given = state.get(prefix + MARK)
        trained = self._settings if given is None else bytes(given.tolist()).decode()
        if trained != self._settings:
            problem = f"these weights were trained with {trained}"
            expected = f"{self._settings}, which the model has"
            hint = "Give add_pair_norm the same settings."
            raise PairNormError(problem, code="other-norm", value=trained, expected=expected, hint=hint)

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(self._arguments, args, strict=False)) | kwargs
        self._pass.begin(
            self._last,
            None if self._batch is None else self._find(self._batch, given),
            given.get("batch_size"),
            {} if self._batch is None or self._settled else given,
        )

    def _find(self, name: str, given: dict[str, Any]) -> Any:
        """Return the batch vector, or one for each node type: an argument, or an attribute of the first."""
        first = next(iter(given.values()), None)
        known = name in self._arguments
        for key in (name, f"{name}_dict"):
            known = known or key in given
            if given.get(key) is not None:
                return given[key]
            if not isinstance(first, Tensor | Mapping) and (found := getattr(first, key, None)) is not None:
                return found or None if isinstance(found, Mapping) else found
        if not known and name != "batch":
            problem = f"{type(self.model).__name__} was given no {name!r}"
            expected = f"one of its arguments {self._arguments}, or an attribute of the first"
            raise PairNormError(problem, code="unknown-argument", value=name, expected=expected)
        return None

    def _before_convolution(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._pass.active:
            return self._pass.enter_convolution(self._names[module], args, kwargs)
        # A checkpoint runs a convolution again during the backward pass, with the input it had.
        if torch._C._current_graph_task_id() == -1:
            raise PairNormError(
                f"{self._names[module]} ran outside the forward of {type(self.model).__name__}, where "
                "PairNorm cannot follow",
                code="outside-forward",
                value=self._names[module],
                hint="Call the model itself, or remove the patch first.",
            )
        return None

    def _after_convolution(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return self._pass.leave_convolution(output) if self._pass.active else None


class _Pass(TorchFunctionMode):
    """One forward pass. It sees every activation function, whether a module or plain code calls it."""

    def __init__(self, norm: PairNorm, layers: dict[str, str]) -> None:
        super().__init__()
        self.norm, self.layers = norm, layers
        found = {name: _EDGE_TYPE.search(name) for name in layers}
        self.targets = {name: edges["target"] if edges else "" for name, edges in found.items()}
        self.unused: str | None = None  # an argument that may well be a batch vector, and was not taken
        self.active = False
        self._reset("", None, None, {})

    def _reset(self, last: str, batch: Any, batch_size: Any, given: dict[str, Any]) -> None:
        name, call, count = last.partition(" ")
        self.last, self.last_layer = last, self.layers.get(name, "") + call + count
        self.batch, self.batch_size, self.given = batch, batch_size, given
        self.calls: list[str] = []
        self.counts: dict[str, int] = {}
        self.places: dict[str, str] = {}
        self.running = 0  # convolutions entered and not yet left
        self.activated: Any = None  # what the latest activation function inside one of them gave
        self.waiting: list[str] = []  # convolutions whose PairNorm is still to come
        self.layer = ""  # the layer they belong to
        self.inputs: list[Tensor] = []  # what went into them
        self.outputs: dict[str, Tensor] = {}  # what came out, by node type; "" where there is only one

    def begin(self, last: str, batch: Any, batch_size: Any, given: dict[str, Any]) -> None:
        self._reset(last, batch, batch_size, given)
        self.active = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> tuple[list[str], dict[str, str]]:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.active = False
        calls, places = self.calls, self.places
        self._reset("", None, None, {})
        return calls, places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _ACTIVATIONS:
            return output
        if self.running:
            self.activated = output
        elif self.outputs and (kind := self._kind(args[0], output)) is not None:
            return self.normalize(output, f"after {func.__name__}", kind)
        return output

    def _kind(self, x: Tensor, output: Tensor) -> str | None:
        """Return the node type that waits for PairNorm and that ``output`` has the nodes of, if any."""
        for kind, waiting in self.outputs.items():
            if waiting is x:
                return kind
        for kind, waiting in self.outputs.items():
            if len(waiting) == len(output):
                return kind
        return None

    def enter_convolution(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.running += 1
        if self.running > 1:
            return None
        count = self.counts[name] = self.counts.get(name, 0) + 1
        suffix = "" if count == 1 else f" (call {count})"
        self.calls.append(name + suffix)
        self.activated = None
        beside, self.layer = self.layer, self.layers[name] + suffix
        values = (*args, *kwargs.values())
        inputs = _dense_tensors(values)
        # What the waiting convolutions were given too is the graph's, or else this one runs beside them.
        fresh = [x for x in inputs if not any(x is known for known in self.inputs)]
        if not self.waiting:
            self.inputs = inputs
        elif beside == self.layer:
            self.inputs = self.inputs + fresh
        elif fresh or not inputs:
            old, new = self._normalize_input(f"before {name}", values, fresh)
            self.waiting, self.inputs, self.outputs = [], inputs, {}
            return (
                tuple(new if value is old else value for value in args),
                {key: new if value is old else value for key, value in kwargs.items()},
            )
        return None

    def _normalize_input(self, place: str, values: tuple[Any, ...], fresh: list[Tensor]) -> tuple[Any, Any]:
        """Return which value goes into a convolution, a tensor or a dictionary of them, and what should."""
        for value in values:
            if isinstance(value, dict) and any(value.get(kind) is not None for kind in self.outputs):
                kinds = [kind for kind in self.outputs if value.get(kind) is not None]
                return value, value | {kind: self.normalize(value[kind], place, kind) for kind in kinds}
        if "" not in self.outputs or not fresh or not any(value is fresh[0] for value in values):
            raise PairNormError(
                f"there is no single tensor to be normalized {place}, and no activation function was "
                "recognized between it and the convolution before",
                code="no-place",
                value=place.removeprefix("before "),
                hint="Let one of torch's follow the convolution.",
            )
        return fresh[0], self.normalize(fresh[0], place, "")

    def leave_convolution(self, output: Any) -> Tensor | None:
        self.running -= 1
        if self.running:
            return None
        name = self.calls[-1]
        if name == self.last:
            self.places[name] = "left alone, the last"
            return None
        self.places[name] = _BESIDE  # unless a place is found further on
        if self.layer == self.last_layer:
            return None
        self.waiting.append(name)
        if isinstance(output, dict):
            self.outputs |= {kind: x for kind, x in output.items() if x is not None}
            return None
        states = output[0] if isinstance(output, tuple) else output
        kind = self.targets[name.partition(" ")[0]]
        self.outputs[kind] = states
        return self.normalize(output, "at its output", kind) if output is self.activated else None

    def normalize(self, x: Tensor, place: str, kind: str) -> Tensor:
        for name in self.waiting:
            if self.places[name] == _BESIDE:
                self.places[name] = place
        del self.outputs[kind]
        if not self.outputs:
            self.waiting, self.inputs = [], []
        batch, size = (
            value.get(kind) if isinstance(value, dict) else value for value in (self.batch, self.batch_size)
        )
        if batch is None and self.unused is None:
            self.unused = next((name for name, value in self.given.items() if _counts(value, kind, x)), None)
        y: Tensor = self.norm(x, batch, size)
        return y


def _warn_of_unused(name: str) -> bool:
    warnings.warn(
        f"{name!r} has an integer for each node and was not used: PairNorm takes all nodes for one graph. If "
        f"it says which graph a node is of, call add_pair_norm with batch={name!r}, else with batch=None.",
        stacklevel=2,
    )
    return True


# To be run, not traced: as torch.compiler.assume_constant_result, which takes 1.5 s to import the compiler.
_warn_of_unused._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _counts(value: Any, kind: str, x: Tensor) -> bool:
    """Say whether ``value`` may well be a batch vector of the nodes of ``x``: integers, some alike."""
    value = value.get(kind) if isinstance(value, dict) else value
    if not isinstance(value, Tensor) or value.dim() != 1 or len(value) != len(x):
        return False
    if value.dtype not in (torch.int32, torch.int64):
        return False
    return torch.compiler.is_compiling() or 1 < len(value.unique()) < len(value)


def _counting(model: nn.Module) -> bool:
    """Say whether a model has buffers of its own, which a forward pass may change."""
    return any(not name.endswith(MARK) for name, _ in model.named_buffers())


class _Rewind:
    """Sets random generators and the buffers of a model back to what they were before a forward pass."""

    def __init__(self, model: nn.Module) -> None:
        devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
        self.cpu = torch.get_rng_state()
        self.cuda = {device: torch.cuda.get_rng_state(device) for device in devices}
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]

    def __call__(self) -> None:
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)


def _dense_tensors(values: Iterable[Any]) -> list[Tensor]:
    flat = (item for value in values for item in (value if isinstance(value, (tuple, list)) else (value,)))
    return [x for x in flat if isinstance(x, Tensor) and x.is_floating_point() and x.layout == torch.strided]
