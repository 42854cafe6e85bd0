"""Find the places between graph convolutions where a norm belongs, in one observed forward pass."""

from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.overrides import TorchFunctionMode

from pairnorm.base.errors import PairNormError
from pairnorm.nn.find_convolutions import convolves, node_states

# Sigmoid and softmax are left out: they are gates and attention more often than activations.
_ACTIVATION_NAMES = """relu relu_ relu6 leaky_relu elu selu celu rrelu prelu gelu silu mish softplus softsign
    tanh hardtanh hardswish tanhshrink softshrink hardshrink"""
_ACTIVATIONS: frozenset[Any] = frozenset(
    getattr(home, name, None) for home in (F, torch, Tensor) for name in _ACTIVATION_NAMES.split()
) - {None}
# After these functions, row i no longer belongs to node i, even where the number of rows is the same.
_REORDERING_NAMES = """__getitem__ index_select gather take take_along_dim masked_select index_put index_add
    index_copy scatter scatter_add scatter_reduce flip roll sort argsort T mT H t transpose permute swapaxes
    movedim einsum cdist __rmatmul__ repeat_interleave"""
_REORDERING = frozenset(_REORDERING_NAMES.split())
_PRODUCTS = frozenset(("matmul", "__matmul__", "mm", "bmm", "spmm"))
_DROPOUTS = frozenset(("dropout", "dropout_", "alpha_dropout", "feature_alpha_dropout", "alias"))
_OUTPUT = "the output of the model"

InputPath = tuple[int | str, ...]
Inputs = list[tuple[InputPath, Tensor]]
Element = tuple[int, str]  # a call of a convolution, and the node type of one of its outputs


class Place(NamedTuple):
    """A place for a norm: the output of a module, or some inputs of it."""

    where: str  # "before" or "after"
    name: str
    inputs: tuple[InputPath, ...] = ()  # empty: the first one with states, in every call

    def __str__(self) -> str:
        return f"{self.where} {self.name}"


def find_places(
    model: nn.Module, convolutions: dict[str, nn.Module], forward: Callable[[], Any], is_shared_allowed: bool
) -> tuple[list[Place], dict[str, str], int]:
    """Run a model once, without a trace; return the places of norms, the reasons, and the number of nodes."""
    observer = _Observer(model, convolutions)
    with ExitStack() as hooks:
        for module in model.modules():
            if module is not model:
                enter = module.register_forward_pre_hook(observer.enter, with_kwargs=True, prepend=True)
                hooks.callback(enter.remove)
                hooks.callback(module.register_forward_hook(observer.leave, with_kwargs=True).remove)
        with torch.no_grad(), _unchanged(model), observer:
            observer.returned = {id(x) for x in _tensors(forward())}
    places, reasons = _Resolver(observer, is_shared_allowed).resolve()
    return places, reasons, next((len(x) for x in observer.elements.values()), 0)


@contextmanager
def _unchanged(model: nn.Module) -> Iterator[None]:
    """Restore random generators and the buffers of a model after a forward pass."""
    devices = {parameter.device for parameter in model.parameters() if parameter.is_cuda}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    try:
        with torch.random.fork_rng(sorted(devices, key=str)):
            yield
    finally:
        for buffer, value in buffers:
            buffer.copy_(value)


class _Call(NamedTuple):
    """One call of a convolution; ``inputs`` keeps the ids of its tensors valid."""

    module: nn.Module
    label: str
    inputs: Inputs


class _Flow(NamedTuple):
    """Which outputs of convolutions a tensor derives from; ``aligned``: those whose row i is its row i."""

    aligned: frozenset[Element]
    reach: frozenset[Element]


class _Use(NamedTuple):
    """What consumed a tensor: a function with a result, or an argument of a call of a convolution."""

    name: str
    result: Tensor | None
    call: int = -1
    path: InputPath = ()


class _Observer(TorchFunctionMode):
    """Records which modules and functions the states pass through in one forward pass."""

    def __init__(self, model: nn.Module, convolutions: dict[str, nn.Module]) -> None:
        super().__init__()
        self.names = {module: name for name, module in model.named_modules()}
        self.convolutions = {module: name for name, module in convolutions.items()}
        self.calls: list[_Call] = []
        self.elements: dict[Element, Tensor] = {}
        self.running: list[Inputs] = []  # of the convolutions that run
        self.flows: dict[int, _Flow] = {}
        self.alive: list[Tensor] = []  # so that no id comes again
        self.uses: defaultdict[int, list[_Use]] = defaultdict(list)
        self.activations: list[tuple[str, Tensor]] = []
        self.inner_activations: dict[int, str] = {}  # results inside convolutions
        self.leaving: defaultdict[int, list[nn.Module]] = defaultdict(list)  # modules that returned a tensor
        self.results: defaultdict[nn.Module, list[int]] = defaultdict(list)  # what each module returned
        self.consumed: set[Element] = set()  # elements that another convolution depends on
        self.returned: set[int] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output = func(*args, **(kwargs or {}))
        name = func.__self__.__name__ if func.__name__ == "__get__" else func.__name__
        base = name if name.endswith("__") else name.removesuffix("_")
        if self.running:
            if func in _ACTIVATIONS:
                self.alive.append(output)
                self.inner_activations[id(output)] = base
            return output
        sources = [x for x in _tensors((args, kwargs or {})) if id(x) in self.flows]
        if not (results := list(_tensors(output)) if sources else []):
            return output
        is_in_place = isinstance(output, Tensor) and any(output is x for x in sources)
        if is_in_place:  # an alias shows whether the caller goes on with the result or with the argument
            results = [_alias(output)]
        first = next(_tensors(args), None)
        rows = [x for x in sources if base not in _PRODUCTS or x is first] if base not in _REORDERING else []
        for result in results:
            self._derive(base, sources, rows, result)
        if func in _ACTIVATIONS:
            self.activations.append((base, results[0]))
        if is_in_place:
            self.flows[id(output)] = self.flows[id(results[0])]
            return results[0]
        return output

    def _derive(self, name: str, sources: list[Tensor], rows: list[Tensor], result: Tensor) -> None:
        aligned = [self.flows[id(x)].aligned for x in rows if x.shape[:1] == result.shape[:1]]
        reach = [self.flows[id(x)].reach for x in sources]
        self.flows[id(result)] = _Flow(frozenset().union(*aligned), frozenset().union(*reach))
        self.alive.append(result)
        for x in sources:
            self.uses[id(x)].append(_Use(name, result))

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module in self.convolutions:
            self.running.append(list(tensor_inputs(args, kwargs)))

    def leave(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        if module in self.convolutions:
            inputs, states = self.running.pop(), node_states(output)
            if self.running:
                return None
            if convolves(module, (x for _, x in inputs), states):
                self._leave_convolution(module, inputs, states)
                return None
        elif self.running:
            self.results[module].append(0)  # a norm after it would run inside a convolution
            return None
        sources = [x for x in _tensors((args, kwargs)) if id(x) in self.flows]
        if isinstance(output, Tensor) and any(output is x for x in sources):
            result = _alias(output)
            self._derive("alias", [output], [output], result)
            output = result
        for x in _tensors(output) if sources else ():
            if id(x) not in self.flows:  # computed by what no torch function shows
                self._derive(type(module).__name__, sources, sources, x)
        self._note_result(module, output)
        return output

    def _leave_convolution(self, module: nn.Module, inputs: Inputs, states: dict[str, Tensor]) -> None:
        index, name = len(self.calls), self.convolutions[module]
        earlier = sum(call.module is module for call in self.calls)
        self.calls.append(_Call(module, f"{name} (call {earlier + 1})" if earlier else name, inputs))
        for path, x in inputs:
            if id(x) in self.flows:
                self.consumed |= self.flows[id(x)].reach
                self.uses[id(x)].append(_Use("", None, index, path))
        for kind, x in states.items():
            self.elements[index, kind] = x
            element = frozenset([(index, kind)])
            self.flows[id(x)] = _Flow(element, element)
            if id(x) in self.inner_activations:
                self.activations.append((self.inner_activations[id(x)], x))
        self._note_result(module, next(iter(states.values())) if len(states) == 1 else None)

    def _note_result(self, module: nn.Module, output: Any) -> None:
        self.results[module].append(id(output))
        if isinstance(output, Tensor) and not self.uses[id(output)]:
            self.alive.append(output)
            self.leaving[id(output)].append(module)


class _Resolver:
    """Chooses the places of norms from an observed forward pass, or raises an error with the candidates."""

    def __init__(self, observer: _Observer, is_shared_allowed: bool) -> None:
        self.seen, self.is_shared_allowed = observer, is_shared_allowed
        self.places: list[Place] = []
        self.reasons = dict.fromkeys((call.label for call in observer.calls), "left alone, the last")

    def resolve(self) -> tuple[list[Place], dict[str, str]]:
        activations: dict[int, tuple[str, Tensor, list[Element]]] = {}
        # Elements, their states, why the place is before the next convolution, and what may lie between.
        pending: list[tuple[list[Element], Tensor, str, Callable[[_Use], bool]]] = []
        for element, x in self.seen.elements.items():
            if element not in self.seen.consumed:
                if element[0] < len(self.seen.calls) - 1 and not self._is_used(x):
                    self._refuse(element, "what uses its output cannot be followed")
                continue
            used = ((name, y) for name, y in self.seen.activations if self._is_used(y))
            on_states = (use for use in used if element in self.seen.flows[id(use[1])].aligned)
            if (activation := next(on_states, None)) is None:
                pending.append(([element], x, "no activation was recognized", self._keeps_rows_of(x)))
            else:
                activations.setdefault(id(activation[1]), (*activation, []))[2].append(element)
        for name, x, elements in activations.values():
            if (module := self._module_after(x, activations.keys())) is None:
                pending.append((elements, x, f"after {name} and any dropout", _is_dropout))
            else:
                self._add(Place("after", self.seen.names[module]), elements, name)
        # Norms at the inputs of the convolutions that follow, where nothing else uses the states.
        inputs: defaultdict[int, set[InputPath]] = defaultdict(set)
        followers: list[set[nn.Module]] = []
        for elements, x, _, passes in pending:
            exits, other = self._exits(x, passes)
            if other or not exits:
                self._refuse(elements[0], f"its states go into {other or 'no convolution'} as well")
            for use in exits:
                inputs[use.call].add(use.path)
            followers.append({self.seen.calls[use.call].module for use in exits})
        for (elements, _, why, _), modules in zip(pending, followers, strict=True):
            for module in modules:
                paths = [inputs[i] for i, call in enumerate(self.seen.calls) if call.module is module]
                name = self.seen.names[module]
                if any(path != paths[0] for path in paths) or (paths[1:] and not self.is_shared_allowed):
                    self._refuse(elements[0], f"{name} follows it and is called {len(paths)} times")
                self._add(Place("before", name, tuple(sorted(paths[0], key=str))), elements, why)
        return self.places, self.reasons

    def _is_used(self, x: Tensor) -> bool:
        return bool(self.seen.uses[id(x)]) or id(x) in self.seen.returned

    def _keeps_rows_of(self, x: Tensor) -> Callable[[_Use], bool]:
        aligned = self.seen.flows[id(x)].aligned
        return lambda use: self.seen.flows[id(use.result)].aligned == aligned

    def _module_after(self, x: Tensor, activations: Container[int]) -> nn.Module | None:
        """Return the innermost module that returns ``x`` and, in all its calls, an activation like it."""
        hidden = {id(y) for _, y in self.seen.activations if self._is_hidden(y)}
        for module in self.seen.leaving[id(x)]:
            results = self.seen.results[module]
            is_single = len(results) == 1 or self.is_shared_allowed
            is_container = type(module).__name__ == "Sequential"  # it would run a norm inside it
            if is_single and not is_container and all(i in activations or i in hidden for i in results):
                return module
        return None

    def _is_hidden(self, x: Tensor) -> bool:
        """Return whether ``x`` is of a last convolution but not the output: more is computed from it."""
        is_last = self.seen.flows[id(x)].aligned.isdisjoint(self.seen.consumed)
        return is_last and self._exits(x, _is_dropout)[1] not in ("", _OUTPUT)

    def _exits(self, x: Tensor, passes: Callable[[_Use], bool]) -> tuple[list[_Use], str]:
        """Return the inputs of convolutions that ``x`` becomes, and another use of it; empty without one."""
        exits, other, todo, known = [], "", [x], set()
        while todo:
            y = todo.pop()
            if id(y) in known:
                continue
            known.add(id(y))
            other = _OUTPUT if id(y) in self.seen.returned else other
            for use in self.seen.uses[id(y)]:
                if use.result is None:
                    exits.append(use)
                elif passes(use):
                    todo.append(use.result)
                elif other != _OUTPUT:
                    other = use.name
        return exits, other

    def _add(self, place: Place, elements: list[Element], why: str) -> None:
        if place not in self.places:
            self.places.append(place)
        for index, _ in elements:
            label = self.seen.calls[index].label
            known = self.reasons[label]
            names = known.partition(" (")[0] if known.startswith("before") else ""
            together = f"{names}, {place.name}" if names and place.where == "before" else str(place)
            self.reasons[label] = known if str(place) in known else f"{together} ({why})"

    def _refuse(self, element: Element, problem: str) -> NoReturn:
        call, flows = self.seen.calls[element[0]], self.seen.flows
        modules = [("after", call.module)]
        for _, x in self.seen.activations:
            if element in flows[id(x)].aligned:
                modules += [("after", module) for module in self.seen.leaving[id(x)]]
        for other in self.seen.calls:
            if any(id(x) in flows and element in flows[id(x)].reach for _, x in other.inputs):
                modules.append(("before", other.module))
        candidates = [f"{where} {self.seen.names[module]}" for where, module in modules]
        problem = f"the place of PairNorm after {call.label} is ambiguous: {problem}"
        expected = f"one of the places {', '.join(dict.fromkeys(candidates))}"
        hint = (
            "Name all places with {at}, or make each activation a module of its own, such as torch.nn.ReLU."
        )
        raise PairNormError(
            problem, code="ambiguous-place", value=call.label, expected=expected, hint=hint, at=candidates[:1]
        )


def _alias(x: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return x.view_as(x)


def _is_dropout(use: _Use) -> bool:
    return use.name in _DROPOUTS


def _tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def tensor_inputs(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[InputPath, Tensor]]:
    """Yield the tensors among arguments, and inside their tuples, lists and mappings, with their paths."""
    arguments: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for key, value in arguments:
        if isinstance(value, Tensor):
            yield (key,), value
        elif isinstance(value, (Mapping, tuple, list)):
            inner: Any = value.items() if isinstance(value, Mapping) else enumerate(value)
            yield from (((key, place), x) for place, x in inner if isinstance(x, Tensor))
