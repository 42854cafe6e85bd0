"""PairNorm put into any GNN from outside: no change to its code, its parameters or its ``state_dict``."""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pairnorm.errors import PairNormError, one_of
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


_LIBRARIES = ("torch_geometric.", "dgl.")
_POOLING = ("torch_geometric.nn.pool", "dgl.nn.pytorch.glob")
# What a hand-written convolution calls the graph among its arguments, and what it calls itself.
_GRAPH_ARGUMENTS = frozenset(
    ("adj", "adj_t", "adj_matrix", "adjacency", "adjacency_matrix", "edge_index", "edges", "g", "graph")
)
_CLASS_NAMES = re.compile(r"Conv$|Convolution$|(Graph|GCN|GAT|GIN|SAGE)\w*Layer$")


def add_pair_norm(
    model: nn.Module,
    scale: float = 1.0,
    mode: Mode = "PN-SI",
    layers: Sequence[str] | None = None,
    process_group: "ProcessGroup | None" = None,
) -> "PairNormPatch":
    """Put PairNorm after every graph convolution of ``model`` but the last; return a handle that removes it.

    The paper's place is after the activation of a convolution and before dropout. PairNorm comes at the first
    of these that there is:

    - the output of the convolution, where it ends in an activation itself;
    - the output of the first activation function that runs after it, as a module or as a function, on as many
      rows as the convolution gave. A norm of the model between the two stays where it is;
    - the input of the next convolution. Without a recognised activation function, dropout thus comes before
      PairNorm, which makes a difference in training only.

    A residual connection adds the normalised branch (``DeepGCNLayer`` with ``"res"`` or ``"dense"``); where
    the activation follows the sum (``"res+"``), the sum itself goes on unchanged. Convolutions that run side
    by side on the same input are one layer. Heads in ``[nodes, heads, features]`` are normalised one by one.

    The last convolution is the last to run. It is taken to be the last one registered until the first forward
    pass; if that shows another, the pass is repeated from the same random state and the same buffers.

    If ``forward`` is given ``batch``, or a PyG ``Batch`` that has one, every graph is normalised on its own.
    A convolution called outside the model's ``forward`` (layer-wise ``inference`` in PyG) is an error, and so
    is a model that has PairNorm already. Copies of the model have a patch of their own.

    Args:
        model: any module with graph convolutions; see ``graph_convolutions``.
        scale: the paper's s.
        mode: ``"PN"``, ``"PN-SI"`` (the paper's choice for GCN and GAT) or ``"PN-SCS"``.
        layers: the dotted names of the convolutions, where they are not recognised.
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
            raise PairNormError(
                f"{where} is a model of this package",
                code="already-normalised",
                value=name,
                remedy="Build it with {norm} instead.",
                norm=mode,
            )
        if any(base.__name__ == "PairNorm" for base in type(module).__mro__):
            raise PairNormError(
                f"{where} is PairNorm already",
                code="already-normalised",
                value=name,
                remedy="Build the model without it, or leave it as it is.",
            )
        if _patch_of(module):
            raise PairNormError(
                f"{where} is patched already",
                code="already-normalised",
                value=name,
                remedy="Call remove() of its handle or remove_pair_norm.",
            )
    return PairNormPatch(model, PairNorm(scale, mode, process_group=process_group), convolutions)


def remove_pair_norm(model: nn.Module) -> None:
    """Remove what ``add_pair_norm`` put into ``model``, for a copy whose handle is not at hand."""
    for module in model.modules():
        if patch := _patch_of(module):
            patch.remove()


def _patch_of(module: nn.Module) -> "PairNormPatch | None":
    owners = (getattr(hook, "__self__", None) for hook in module._forward_pre_hooks.values())
    return next((owner for owner in owners if isinstance(owner, PairNormPatch)), None)


class PairNormPatch:
    """PairNorm inside a model: removed by ``remove`` or at the end of a ``with`` block."""

    def __init__(self, model: nn.Module, norm: PairNorm, convolutions: dict[str, nn.Module]) -> None:
        self.model, self.norm = model, norm
        self.places = dict.fromkeys(convolutions, "not run yet")
        self._names = {module: name for name, module in convolutions.items()}
        self._arguments = list(inspect.signature(model.forward).parameters)
        self._last = list(convolutions)[-1]
        self._rewind: _Rewind | None = None
        self._settled = False
        self._pass = _Pass(norm)
        self._hooks = [
            model.register_forward_pre_hook(self._before_model, with_kwargs=True),
            model.register_forward_hook(self._after_model, with_kwargs=True, always_call=True),
        ]
        for module in self._names:
            self._hooks.append(module.register_forward_pre_hook(self._before_convolution, with_kwargs=True))
            self._hooks.append(module.register_forward_hook(self._after_convolution))

    def remove(self) -> None:
        """Take PairNorm out again, which leaves the model exactly as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

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
        calls, places = self._pass.end()
        if output is None or not calls:  # an exception is on its way, or no convolution has run
            return output
        if calls[-1] != self._last and self._rewind:
            self._last = calls[-1]
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
                remedy="A model must end in the same one in every pass, and must have run once before "
                "torch.compile if that is not the one registered last.",
            )
        self._settled, self._rewind, self.places = True, None, places
        return output

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = dict(zip(self._arguments, args, strict=False)) | kwargs
        batch = given.get("batch")
        if batch is None and args and not isinstance(args[0], Tensor):
            batch = getattr(args[0], "batch", None)
        self._pass.begin(self._last, batch, given.get("batch_size"))

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
                remedy="Call the model itself, or remove the patch first.",
            )
        return None

    def _after_convolution(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
        return self._pass.leave_convolution(output) if self._pass.active else None


class _Pass(TorchFunctionMode):
    """One forward pass. It sees every activation function, whether a module or plain code calls it."""

    def __init__(self, norm: PairNorm) -> None:
        super().__init__()
        self.norm = norm
        self.active = False
        self._reset("", None, None)

    def _reset(self, last: str, batch: Tensor | None, batch_size: int | None) -> None:
        self.last, self.batch, self.batch_size = last, batch, batch_size
        self.calls: list[str] = []
        self.counts: dict[str, int] = {}
        self.places: dict[str, str] = {}
        self.running = 0  # convolutions entered and not yet left
        self.activated: Any = None  # what the latest activation function inside one of them gave
        self.waiting: list[str] = []  # convolutions whose PairNorm is still to come
        self.inputs: list[Tensor] = []  # what went into those
        self.nodes = 0  # the rows that came out of them

    def begin(self, last: str, batch: Tensor | None, batch_size: int | None) -> None:
        self._reset(last, batch, batch_size)
        self.active = True
        self.__enter__()  # type: ignore[no-untyped-call]

    def end(self) -> tuple[list[str], dict[str, str]]:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.active = False
        calls, places = self.calls, self.places
        self._reset("", None, None)
        return calls, places

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        if func not in _ACTIVATIONS:
            return output
        if self.running:
            self.activated = output
        elif self.waiting and len(output) == self.nodes:
            return self.normalise(output, f"after {func.__name__}")
        return output

    def enter_convolution(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.running += 1
        if self.running > 1:
            return None
        count = self.counts[name] = self.counts.get(name, 0) + 1
        self.calls.append(name if count == 1 else f"{name} (call {count})")
        self.activated = None
        values = (*args, *kwargs.values())
        inputs = _dense_tensors(values)
        # What the waiting convolutions were given too is the graph's, or else this one runs beside them.
        fresh = [x for x in inputs if not any(x is known for known in self.inputs)]
        if not self.waiting:
            self.inputs = inputs
        elif fresh or not inputs:
            if not fresh or not any(value is fresh[0] for value in values):
                raise PairNormError(
                    f"{name} takes no single tensor that could be normalised, and no activation function was "
                    "recognised before it",
                    code="no-place",
                    value=name,
                    remedy="Let one of torch's follow the convolution before.",
                )
            x, y = fresh[0], self.normalise(fresh[0], f"before {name}")
            self.inputs = inputs
            return (
                tuple(y if value is x else value for value in args),
                {key: y if value is x else value for key, value in kwargs.items()},
            )
        return None

    def leave_convolution(self, output: Any) -> Tensor | None:
        self.running -= 1
        if self.running:
            return None
        name = self.calls[-1]
        if name == self.last:
            self.places[name] = "left alone, the last"
            return None
        self.places[name] = "left alone, beside the last"  # unless a place is found further on
        self.waiting.append(name)
        self.nodes = len(output[0] if isinstance(output, tuple) else output)
        return self.normalise(output, "at its output") if output is self.activated else None

    def normalise(self, x: Tensor, place: str) -> Tensor:
        self.places |= dict.fromkeys(self.waiting, place)
        self.waiting, self.inputs = [], []
        y: Tensor = self.norm(x, self.batch, self.batch_size)
        return y


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


def graph_convolutions(model: nn.Module, layers: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Return the graph convolutions inside ``model`` by dotted name, in order of registration.

    Recognised are, without importing any of these libraries:

    - the convolutions of this package, of PyG (``MessagePassing`` and all named ``...Conv``) and of DGL, and
      any class that declares ``is_graph_convolution = True``. Where one contains another, as ``DirGNNConv``
      and ``GPSConv`` do, the *outermost* counts: the inner one is part of how it computes;
    - hand-written modules whose ``forward`` takes a graph beside the features (``adj``, ``edge_index``, ...)
      or, if the class is named like a convolution, any two inputs. Where one contains another convolution,
      the *innermost* counts: the outer one is a block around it, as ``DeepGCNLayer`` is.

    A module used in several places appears once, under its first name; ``model`` itself and the scoring
    convolutions of pooling layers are left out.

    Args:
        model: any module.
        layers: the dotted names of the convolutions, for a model whose convolutions are not recognised.

    >>> class Convolution(nn.Module):
    ...     def forward(self, x, adjacency):
    ...         return adjacency @ x
    >>> list(graph_convolutions(nn.ModuleList([Convolution(), nn.ReLU(), Convolution()])))
    ['0', '2']
    """
    if layers is not None:
        return _named(model, layers)
    first_names: dict[nn.Module, str] = {}
    for name, convolution in _inside(model, ""):
        first_names.setdefault(convolution, name)
    found = {name: convolution for convolution, name in first_names.items()}
    if not found:
        children = [f"  {name}: {type(child).__name__}" for name, child in model.named_children()]
        raise PairNormError(
            f"no graph convolution was recognised in {type(model).__name__}, whose children are\n"
            + ("\n".join(children) or "  (none)")
            + "\n",
            code="no-convolution",
            remedy="Name the convolutions by their dotted names, {layers}, or declare "
            "is_graph_convolution = True in their class.",
            layers=["encoder.0", "encoder.1"],
        )
    return found


def _named(model: nn.Module, layers: Sequence[str]) -> dict[str, nn.Module]:
    modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
    if isinstance(layers, str) or not layers:
        raise PairNormError(
            f"layers is {layers!r}",
            code="unknown-choice",
            value=layers,
            expected=f"a list of dotted module names such as {list(modules)[:2]}",
        )
    return {name: modules[one_of("a name in layers", name, list(modules))] for name in layers}


def _inside(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the convolutions among the descendants of ``module``, depth first, shared ones at every place."""
    for name, child in module._modules.items():
        if child is None or _is_from(child, _POOLING):
            continue
        path = f"{prefix}{name}"
        if _is_convolution(child):
            yield path, child
        elif inner := list(_inside(child, f"{path}.")):
            yield from inner
        elif _resembles_convolution(child):
            yield path, child


def _is_from(module: nn.Module, packages: tuple[str, ...]) -> bool:
    return type(module).__module__.startswith(packages)


def _is_convolution(module: nn.Module) -> bool:
    return bool(getattr(module, "is_graph_convolution", False)) or any(
        base.__module__.startswith(_LIBRARIES)
        and (base.__name__ == "MessagePassing" or base.__name__.endswith("Conv"))
        for base in type(module).__mro__
    )


def _resembles_convolution(module: nn.Module) -> bool:
    if _is_from(module, (*_LIBRARIES, "torch.")):
        return False
    arguments = list(inspect.signature(type(module).forward).parameters)[1:]
    if len(arguments) < 2:
        return False
    return any(name.lower() in _GRAPH_ARGUMENTS for name in arguments) or bool(
        _CLASS_NAMES.search(type(module).__name__)
    )
