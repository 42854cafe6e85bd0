"""The epoch loop of all models: Adam, validation after every epoch, the best parameters of every trial."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import groupby

import torch
from torch import Tensor
from torch.optim.adam import adam

from pairnorm.base.memory import without_collection

# Replays of a captured epoch are queued. Synchronizing regularly keeps the queue short and Ctrl-C prompt.
EPOCHS_PER_SYNC = 25
# Jobs may run in several threads. Only one captures at a time, since a capture synchronizes the device.
CAPTURE = threading.Lock()


class Loop:
    """Train many independent models together.

    An epoch is a step of Adam on every model's loss, then validation. The parameters of the epoch with the
    best validation accuracy are kept, per model. On CUDA the first epochs run eagerly, and the others replay
    a captured epoch, also after ``reset`` with other data or weights in the same tensors.

    Args:
        parameters: tensors that Adam updates.
        models: views of the same tensors whose leading axes count the models.
        loss: returns the training loss of every model from the number of the epoch, an int32 tensor. It may
            set the gradients of the parameters itself; then its result requires no gradient. It must not
            refer to the loop, or the memory of the captured epoch would never be freed.
        accuracy: returns the validation accuracy of every model; likewise.
        learning_rate: of Adam, one per model. If they differ, the models must lie one after the other in the
            parameters too.
        weight_decay: L2 penalty of Adam; likewise.
        curves: record loss and accuracy of every epoch.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        models: Sequence[Tensor],
        loss: Callable[[Tensor], Tensor],
        accuracy: Callable[[], Tensor],
        *,
        learning_rate: Sequence[float],
        weight_decay: Sequence[float],
        curves: bool = False,
    ) -> None:
        self._parameters = list(parameters)
        self._models, self._loss, self._accuracy = [model.detach() for model in models], loss, accuracy
        self._device = device = parameters[0].device
        self.cuda = device.type == "cuda"
        self._epoch_number = torch.zeros((), dtype=torch.int32, device=device)
        self.best_parameters = [model.clone() for model in self._models]
        with torch.no_grad(), on_device(device):
            shape = accuracy().shape
        self._slices: list[tuple[Tensor, Tensor, slice]] = []
        self._adam = self._optimizer(list(zip(learning_rate, weight_decay, strict=True)))
        self.best_accuracy = torch.full(shape, -1.0, device=device)
        self.best_epoch = torch.zeros(shape, dtype=torch.int32, device=device)
        self.diverged = torch.zeros(shape, dtype=torch.bool, device=device)
        self._latest = torch.zeros(2, *shape, device=device)
        self.curves: list[Tensor] | None = [] if curves else None
        self._stream: torch.cuda.Stream | None = None
        self._captured: torch.cuda.CUDAGraph | None = None

    def _optimizer(self, settings: Sequence[tuple[float, float]]) -> "Adam":
        """Return an optimizer with the learning rate and weight decay of every model."""
        groups: dict[tuple[float, float], list[Tensor]] = defaultdict(list)
        if len({*settings}) == 1:
            groups[settings[0]] = self._parameters
        else:  # adjacent models with equal settings form one slice: Adam is faster on few large tensors
            for setting, group in groupby(range(len(settings)), settings.__getitem__):
                numbers = list(group)
                columns = slice(numbers[0], numbers[-1] + 1)
                for parameter in self._parameters:
                    models = parameter.detach().view(len(settings), -1)[columns]
                    self._slices.append((models, parameter, columns))
                    groups[setting].append(models)
        return Adam((part, rate, decay) for (rate, decay), part in groups.items())

    def reset(self) -> None:
        """Restart at epoch 0 from the current parameters."""
        for tensor in (*self._adam.state().values(), self._epoch_number, self.best_epoch, self.diverged):
            tensor.zero_()
        self.best_accuracy.fill_(-1.0)
        for best, model in zip(self.best_parameters, self._models, strict=True):
            best.copy_(model)
        if self.curves is not None:
            self.curves = []

    def train(self, epochs: int, tick: Callable[[int], None] = lambda epochs: None) -> None:
        """Train; ``tick`` is called regularly with the number of epochs since its last call."""
        warm = min(3, epochs) if self.cuda and self._captured is None else 0
        done = 0
        with self._on_stream() if self.cuda else _flush_denormals():
            if warm:
                self._capture(warm, epochs > warm)
            for epoch in range(warm + 1, epochs + 1):
                if self._captured is None:
                    self._epoch()
                else:
                    self._captured.replay()
                self._record()
                if epoch % EPOCHS_PER_SYNC == 0:
                    if self._stream is not None:
                        self._stream.synchronize()
                    tick(epoch - done)
                    done = epoch
        tick(epochs - done)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Run on a stream of the loop's own: the default stream cannot be captured."""
        with on_device(self._device):
            here, default = torch.cuda.current_stream(), torch.cuda.default_stream()
            if self._stream is None:
                self._stream = here if here != default else torch.cuda.Stream()
            self._stream.wait_stream(here)
            with torch.cuda.stream(self._stream):
                yield
            here.wait_stream(self._stream)

    def _capture(self, warm: int, more: bool) -> None:
        """Run the first epochs eagerly, as libraries initialize and allocate, then capture an epoch."""
        with CAPTURE:
            for _ in range(warm):
                self._epoch()
                self._record()
            if more:
                self._clear_gradients()
                captured = torch.cuda.CUDAGraph()
                with (
                    # No garbage collection: freeing another captured graph would end this capture.
                    without_collection(),
                    torch.cuda.graph(captured, stream=self._stream, capture_error_mode="thread_local"),
                ):
                    self._epoch()
                self._captured = captured

    def _epoch(self) -> None:
        """Run one epoch: a step of Adam and the validation."""
        self._clear_gradients()
        losses = self._loss(self._epoch_number)
        if losses.requires_grad:
            losses.sum().backward()
        for models, parameter, columns in self._slices:
            if parameter.grad is not None:
                models.grad = parameter.grad.reshape(-1, models.size(1))[columns]
        self._adam.step()
        with torch.no_grad():
            accuracy = self._accuracy()
            finite = losses.isfinite()
            self.diverged |= ~finite
            self._update_best((accuracy > self.best_accuracy) & finite, accuracy)
            self._latest[0], self._latest[1] = losses.detach(), accuracy
            self._epoch_number += 1

    def _clear_gradients(self) -> None:
        """Free the gradients of the last epoch."""
        for tensor in (*self._parameters, *(models for models, _, _ in self._slices)):
            tensor.grad = None

    def _update_best(self, better: Tensor, accuracy: Tensor) -> None:
        """Copy the parameters of the models that are better than in all earlier epochs."""
        if not self.cuda and not better.any():
            return
        self.best_accuracy.copy_(torch.where(better, accuracy, self.best_accuracy))
        self.best_epoch.copy_(torch.where(better, self._epoch_number, self.best_epoch))
        for best, model in zip(self.best_parameters, self._models, strict=True):
            chosen = better.view(*better.shape, *[1] * (best.dim() - better.dim()))
            torch.where(chosen, model, best, out=best)

    def state(self) -> dict[str, Tensor]:
        """Return the state of the loop for ``load_state``, as tensors by name."""
        state = {name: getattr(self, name) for name in ("best_accuracy", "best_epoch", "diverged")}
        state |= {"epoch": self._epoch_number} | self._adam.state()
        state |= {f"{number}.now": updated.detach() for number, updated in enumerate(self._adam.parameters)}
        return state | {f"{number}.kept": best for number, best in enumerate(self.best_parameters)}

    def load_state(self, state: Mapping[str, Tensor]) -> int:
        """Load the ``state`` of a loop over the same models, and return its number of finished epochs."""
        with torch.no_grad():
            for name, mine in self.state().items():
                mine.copy_(state[name])
        return int(self._epoch_number)

    def restore(self) -> None:
        """Load the parameters of the best epoch into the models."""
        for best, model in zip(self.best_parameters, self._models, strict=True):
            model.copy_(best)

    def _record(self) -> None:
        """Append the metrics of the last epoch to the curves."""
        if self.curves is not None:
            self.curves.append(self._latest.clone())


class Adam:
    """Adam with fused steps, as ``torch.optim.Adam``, which would import torch's compiler: a second.

    Args:
        groups: tensors to update, with their learning rate and weight decay.
    """

    def __init__(self, groups: Iterable[tuple[Iterable[Tensor], float, float]]) -> None:
        self._groups = [(list(tensors), rate, decay) for tensors, rate, decay in groups]
        self.parameters = [tensor for tensors, _, _ in self._groups for tensor in tensors]
        self._state = {
            parameter: (
                torch.zeros_like(parameter, requires_grad=False),
                torch.zeros_like(parameter, requires_grad=False),
                torch.zeros((), device=parameter.device),
            )
            for parameter in self.parameters
        }

    def state(self) -> dict[str, Tensor]:
        """Return the moments and the number of steps of every tensor, by its number."""
        names = ("exp_avg", "exp_avg_sq", "step")
        states = enumerate(map(self._state.__getitem__, self.parameters))
        return {
            f"{number}.{name}": tensor
            for number, state in states
            for name, tensor in zip(names, state, strict=True)
        }

    @torch.no_grad()
    def step(self) -> None:
        """Update the tensors that have gradients."""
        for tensors, rate, decay in self._groups:
            with_gradients = [tensor for tensor in tensors if tensor.grad is not None]
            if not with_gradients:
                continue
            averages, squares, steps = zip(*map(self._state.__getitem__, with_gradients), strict=True)
            gradients = [tensor.grad for tensor in with_gradients if tensor.grad is not None]
            adam(
                with_gradients, gradients, list(averages), list(squares), [], list(steps), fused=True,
                amsgrad=False, beta1=0.9, beta2=0.999, lr=rate, weight_decay=decay, eps=1e-8, maximize=False,
            )  # fmt: skip


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a CUDA device the current device, to whose streams kernels and captures go."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@contextmanager
def _flush_denormals() -> Iterator[None]:
    """Flush denormal numbers to zero, as GPUs do: on a CPU each costs a hundred cycles.

    Gradients of well-trained models are often denormal.
    """
    before = float(torch.tensor(1e-310, dtype=torch.float64) + 0.0) == 0.0
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)
