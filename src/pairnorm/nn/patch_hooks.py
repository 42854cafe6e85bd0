"""PairNorm at a place of a patched model, and the hooks that run it with the facts of each forward pass."""

import inspect
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import GRAPH_ARGUMENTS, is_node_states
from pairnorm.nn.find_places import InputPath, tensor_inputs
from pairnorm.nn.pair_norm import PairNorm


class _Active(threading.local):
    """The patched calls that run in each thread; ``torch.compile`` can trace it."""

    def __init__(self) -> None:
        self.call: tuple[Any, Any] | None = None  # batch vector and batch size of the forward pass that runs
        self.is_observing = False  # whether a model runs only to find the places for PairNorm


ACTIVE = _Active()


class PlacedPairNorm(PairNorm):
    """PairNorm in a patched model, which takes the batch vector from the forward pass that runs."""

    is_one_graph = has_seen_batch = False
    inputs: tuple[InputPath, ...] = ()

    def normalize(self, x: Tensor, kind: str = "") -> Tensor:
        """Normalize the states of a node type."""
        if ACTIVE.call is None:
            self._check_without_call()
            return self(x)
        batch, size = ACTIVE.call
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


def normalize_output(module: Any, args: tuple[Any, ...], output: Any) -> Any:
    """Normalize what a module returns: a forward hook."""
    norm: PlacedPairNorm = module.pair_norm_after
    if isinstance(output, Mapping):
        return {kind: norm.normalize(x, kind) for kind, x in output.items()}
    if isinstance(output, tuple):
        return (norm.normalize(output[0]), *output[1:])
    return norm.normalize(output)


def normalize_inputs(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Normalize some inputs of a module, or all its states if none are named: a forward pre-hook."""
    norm: PlacedPairNorm = module.pair_norm_before
    values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
    for key, *inside in norm.inputs or _states_inputs(module, args, kwargs):
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


def _states_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[InputPath]:
    """Return the paths of the first argument that holds states and is not named like a graph."""
    names = list(inspect.signature(module.forward).parameters)

    def is_graph(key: int | str) -> bool:
        name = names[min(key, len(names) - 1)] if isinstance(key, int) else key
        return name.lower() in GRAPH_ARGUMENTS

    inputs = tensor_inputs(args, kwargs)
    paths = [path for path, x in inputs if is_node_states(x) and not is_graph(path[0])]
    return [path for path in paths if path[0] == paths[0][0]]


def refuse_call(module: nn.Module, args: tuple[Any, ...]) -> None:
    """Raise an error where a convolution runs before the places are found: a forward pre-hook."""
    if not ACTIVE.is_observing:
        raise _outside_forward(type(module).__name__)


def remove_hooks(module: nn.Module) -> None:
    """Remove the hooks of a patch from a module."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if hook in (normalize_output, normalize_inputs, refuse_call):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _outside_forward(subject: str) -> PairNormError:
    problem = f"{subject} ran outside the forward of the patched model"
    problem = f"{problem}, where PairNorm does not know the graph of each node"
    hint = "Call the patched model, patch the module that you call, or pass {batch} for one graph."
    return PairNormError(problem, code="outside-forward", hint=hint, batch=None)
