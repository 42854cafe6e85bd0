"""Hooks that run PairNorm at its places in a patched model, with the facts of each forward pass."""

import inspect
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import GRAPH_ARGUMENTS, is_node_states
from pairnorm.nn.find_places import InputPath
from pairnorm.nn.pair_norm import PairNorm


def is_observing() -> bool:
    """Return whether this thread runs a model only to find the places for PairNorm."""
    return ACTIVE.is_observing


class Active(threading.local):
    """What each thread is doing: the facts of the forward pass it runs. ``torch.compile`` can trace it."""

    def __init__(self) -> None:
        self.call: Call | None = None
        self.is_observing = False


ACTIVE = Active()


class Call:
    """The facts of one forward pass."""

    def __init__(self, batch: Any, batch_size: Any) -> None:
        self.batch, self.batch_size = batch, batch_size


class PatchOptions:
    """What the places of one patch share; ``has_seen_batch`` only ever becomes True."""

    def __init__(self, is_one_graph: bool) -> None:
        self.is_one_graph, self.has_seen_batch = is_one_graph, False


class NormalizeOutput:
    """A forward hook that normalizes what a module returns."""

    def __init__(self, options: PatchOptions) -> None:
        self.options = options

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:  # noqa: D102
        norm: Any = module.pair_norm_after
        if isinstance(output, Mapping):
            return {kind: _normalize(norm, x, kind, self.options) for kind, x in output.items()}
        if isinstance(output, tuple):
            return (_normalize(norm, output[0], "", self.options), *output[1:])
        return _normalize(norm, output, "", self.options)


class NormalizeInputs:
    """A forward pre-hook that normalizes some inputs of a module: all its states, if none are named."""

    def __init__(self, options: PatchOptions, inputs: tuple[InputPath, ...]) -> None:
        self.options, self.inputs = options, inputs

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: D102
        norm: Any = module.pair_norm_before
        values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for key, *inside in self.inputs or _states_inputs(module, args, kwargs):
            value = values.get(key)
            if not inside:
                values[key] = _normalize(norm, values[key], "", self.options)
            elif isinstance(value, Mapping):
                kind: Any = inside[0]
                if value.get(kind) is not None:
                    values[key] = {**value, kind: _normalize(norm, value[kind], kind, self.options)}
            elif value is not None:
                items, index = list(value), int(inside[0])
                items[index] = _normalize(norm, items[index], "", self.options)
                values[key] = tuple(items)
        return tuple(values[i] for i in range(len(args))), {key: values[key] for key in kwargs}


class Guard:
    """A forward pre-hook of convolutions that must not run before the places are found."""

    def __init__(self, model: str) -> None:
        self.model = model

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:  # noqa: D102
        if not ACTIVE.is_observing:
            raise _outside_forward(f"{type(module).__name__} ran outside the forward of {self.model}")


def remove_hooks(module: nn.Module) -> None:
    """Remove the hooks of a patch from a module."""
    for hooks in (module._forward_hooks, module._forward_pre_hooks):
        for key, hook in list(hooks.items()):
            if isinstance(hook, (NormalizeOutput, NormalizeInputs, Guard)):
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)


def _states_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[InputPath]:
    """Yield the paths of the first argument that holds states and is not named like a graph."""
    names = list(inspect.signature(module.forward).parameters)
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in arguments:
        name = names[min(key, len(names) - 1)] if isinstance(key, int) else key
        if name.lower() in GRAPH_ARGUMENTS:
            continue
        if is_node_states(value):
            yield (key,)
            return
        if isinstance(value, (Mapping, tuple, list)):
            inside: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
            paths = [(key, place) for place, x in inside if is_node_states(x)]
            yield from paths
            if paths:
                return


def _normalize(norm: PairNorm, x: Tensor, kind: str, options: PatchOptions) -> Tensor:
    call = ACTIVE.call
    if call is None:
        _check_without_call(norm, options)
        return norm(x)
    batch, size = call.batch, call.batch_size
    if isinstance(batch, Mapping):
        if not kind:
            raise PairNormError(
                "there is a batch vector for each node type, and PairNorm at a place without types",
                code="no-node-type",
                hint="Name places where the states are a dictionary: {at}.",
                at=["before ..."],
            )
        batch = batch.get(kind)
    return norm(x, batch, size.get(kind) if isinstance(size, Mapping) else size)


def _check_without_call(norm: PairNorm, options: PatchOptions) -> None:
    """Raise an error where the batch vector would be needed and is not known."""
    if options.is_one_graph or (norm.track_running_stats and not norm.training):
        return
    if torch._C._current_graph_task_id() == -1:
        raise _outside_forward("a module with PairNorm ran outside the forward of the patched model")
    # Activation checkpointing runs modules again during the backward pass.
    if options.has_seen_batch:
        raise PairNormError(
            "activation checkpointing recomputes PairNorm, and the batch vector is not known then",
            code="batch-in-checkpoint",
            hint="Checkpoint the whole model, or write PairNorm into the checkpointed function.",
        )


def _outside_forward(problem: str) -> PairNormError:
    hint = "Call the patched model, patch the module that you call, or pass {batch} for one graph."
    return PairNormError(f"{problem}, where PairNorm does not know the graph of each node",
                         code="outside-forward", hint=hint, batch=None)  # fmt: skip


class Rewind:
    """Sets random generators and the buffers of a model back to what they were before a forward pass."""

    def __init__(self, model: nn.Module) -> None:
        devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
        self.cpu = torch.get_rng_state()
        self.cuda = {device: torch.cuda.get_rng_state(device) for device in devices}
        self.buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]

    def __call__(self) -> None:  # noqa: D102
        torch.set_rng_state(self.cpu)
        for device, state in self.cuda.items():
            torch.cuda.set_rng_state(state, device)
        with torch.no_grad():
            for buffer, value in self.buffers:
                buffer.copy_(value)
