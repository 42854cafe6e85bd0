"""Find the graph convolutions of a model, of any library or written by hand."""

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, quoted

_LIBRARIES = ("torch_geometric.", "dgl.")
_POOLING = ("torch_geometric.nn.pool", "dgl.nn.pytorch.glob")
GRAPH_ARGUMENTS = frozenset(
    ("adj", "adj_t", "adj_matrix", "adjacency", "adjacency_matrix", "edge_index", "edges", "g", "graph")
)
"""The names that hand-written convolutions give the graph among their arguments."""
_CLASS_NAMES = re.compile(r"Conv$|Convolution$|(Graph|GCN|GAT|GIN|SAGE)\w*Layer$")
_OTHER_CLASS_NAMES = re.compile(r"Decoder|Predictor|Scorer|Readout|Pool|Head$|Loss$")


def graph_convolutions(model: nn.Module, layers: Sequence[str] | None = None) -> dict[str, nn.Module]:
    """Return the graph convolutions inside ``model`` by dotted name, in order of registration.

    These are recognized, without importing any of the libraries:

    - the convolutions of this package, of PyG (``MessagePassing`` and all named ``...Conv``) and of DGL, and
      any class that declares ``is_graph_convolution = True``. Where one contains another, as ``DirGNNConv``
      and ``GPSConv`` do, the *outermost* counts: the inner one is part of how it computes;
    - hand-written modules whose ``forward`` takes a graph next to the features (``adj``, ``edge_index``, ...)
      or, if the class is named like a convolution, any two inputs. Where one contains another convolution,
      the *innermost* counts: the outer one is a block around it, as ``DeepGCNLayer`` is. Decoders, heads and
      pooling layers are left out by their class names.

    A module used in several places appears once, under its first name. ``model`` itself and the scoring
    convolutions of pooling layers are left out.

    Args:
        model: Any module.
        layers: The dotted names of the convolutions, for a model whose convolutions are not recognized.

    >>> class Convolution(nn.Module):
    ...     def forward(self, x, adjacency):
    ...         return adjacency @ x
    >>> list(graph_convolutions(nn.ModuleList([Convolution(), nn.ReLU(), Convolution()])))
    ['0', '2']
    """
    if not isinstance(model, nn.Module):
        problem = f"the model is {quoted(model)}"
        raise PairNormError(problem, code="wrong-type", value=model, expected="a torch.nn.Module")
    if layers is not None:
        modules = {name: module for name, module in model.named_modules(remove_duplicate=False) if name}
        if isinstance(layers, str) or not layers:
            problem = f"layers is {layers!r}"
            expected = f"a list of dotted module names such as {list(modules)[:2]}"
            raise PairNormError(problem, code="unknown-choice", value=layers, expected=expected)
        return {name: modules[one_of("a name in layers", name, list(modules))] for name in layers}
    first_names: dict[nn.Module, str] = {}
    for name, convolution in _inside(model, ""):
        first_names.setdefault(convolution, name)
    if not first_names:
        children = {name: type(child).__name__ for name, child in model.named_children()}
        inside = ", ".join(f"{name} ({kind})" for name, kind in children.items()) or "nothing"
        problem = f"no graph convolution was recognized in {type(model).__name__}, which has {inside}"
        hint = (
            "Name the convolutions by their dotted names, {layers}, or declare is_graph_convolution = True "
            "in their class."
        )
        if _is_known_convolution(model):
            problem = f"{type(model).__name__} is one graph convolution, not a model with several"
            hint = "Pass the model that contains it; for PairNorm between SGC's steps, pairnorm.nn.SGC."
        names = list(children)[:2] or ...
        raise PairNormError(problem, code="no-convolution", hint=hint, layers=names)
    return {name: convolution for convolution, name in first_names.items()}


def _inside(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield the convolutions among the descendants of ``module``, depth first, shared ones repeatedly."""
    for name, child in module._modules.items():
        if child is None or type(child).__module__.startswith(_POOLING):
            continue
        path = f"{prefix}{name}"
        if _is_known_convolution(child):
            yield path, child
        elif inner := list(_inside(child, f"{path}.")):
            yield from inner
        elif _resembles_convolution(child):
            yield path, child


def _is_known_convolution(module: nn.Module) -> bool:
    """Return whether a module is a convolution of a library or declares to be one."""
    return bool(getattr(module, "is_graph_convolution", False)) or any(
        base.__module__.startswith(_LIBRARIES)
        and (base.__name__ == "MessagePassing" or base.__name__.endswith("Conv"))
        for base in type(module).__mro__
    )


def _resembles_convolution(module: nn.Module) -> bool:
    name, home = type(module).__name__, type(module).__module__
    if home.startswith((*_LIBRARIES, "torch.")) or _OTHER_CLASS_NAMES.search(name):
        return False
    arguments = list(inspect.signature(type(module).forward).parameters)[1:]
    names_graph = any(argument.lower() in GRAPH_ARGUMENTS for argument in arguments)
    return len(arguments) > 1 and (names_graph or bool(_CLASS_NAMES.search(name)))


def convolves(module: nn.Module, inputs: Iterable[Any], states: dict[str, Tensor]) -> bool:
    """Return whether a call was a convolution: a hand-written decoder returns no row for every node."""
    rows = {len(x) for x in inputs if isinstance(x, Tensor) and x.ndim}
    return _is_known_convolution(module) or any(len(x) in rows for x in states.values())


def is_pair_norm(module: nn.Module) -> bool:
    """Return whether a module is a PairNorm, of this package or of PyG, or of a class derived from them."""
    return any(base.__name__ == "PairNorm" for base in type(module).__mro__)


def is_node_states(value: Any) -> bool:
    """Return whether ``value`` may hold one row per node: a dense float tensor [nodes, ..., features]."""
    is_dense = isinstance(value, Tensor) and value.layout == torch.strided
    return is_dense and value.is_floating_point() and value.ndim >= 2


def node_states(output: Any) -> dict[str, Tensor]:
    """Return the states in a convolution's output by node type: a tensor, or the first of a tuple, is ""."""
    if isinstance(output, Mapping):
        return {str(kind): x for kind, x in output.items() if is_node_states(x)}
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    return {"": first} if is_node_states(first) else {}
