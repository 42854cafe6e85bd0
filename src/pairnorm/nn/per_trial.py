"""A plain module over [nodes, features], once for every trial."""

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

# Jobs may run in several threads, and torch's generator is one for all.
GENERATOR = threading.Lock()


class PerTrial(nn.Module):
    """Copies of a module side by side: trial t of ``[nodes, trials, features]`` is given to copy t.

    Parameters and buffers are stacked along a leading trial axis, as those of every model here.

    Args:
        make: makes the module.
        trials: how many copies.
    """

    def __init__(self, make: Callable[[], nn.Module], trials: int) -> None:
        super().__init__()
        self._make, self._modules_of = make, [make()]  # in a list, so that its own parameters are not ours
        copies = [make() for _ in range(trials)]
        self._names = [name for name, _ in copies[0].named_parameters()]
        self._buffer_names = [name for name, _ in copies[0].named_buffers()]
        self.stacked = nn.ParameterList(
            torch.stack([copy.get_parameter(name).detach() for copy in copies]) for name in self._names
        )
        for number, name in enumerate(self._buffer_names):
            self.register_buffer(f"buffer_{number}", torch.stack([copy.get_buffer(name) for copy in copies]))
        self.trials = trials

    def reset_parameters(self, seeds: Sequence[int] | None = None) -> None:
        """Make every copy anew.

        Args:
            seeds: one for each trial, which its parameters then depend on alone.
        """
        for trial in range(self.trials):
            forked = torch.random.fork_rng(devices=[], enabled=seeds is not None)
            with GENERATOR, forked, torch.no_grad():
                if seeds is not None:
                    torch.default_generator.manual_seed(seeds[trial])
                copy = self._make()
                for ours, name in zip(self.stacked, self._names, strict=True):
                    ours[trial] = copy.get_parameter(name)
                for number, name in enumerate(self._buffer_names):
                    self.get_buffer(f"buffer_{number}")[trial] = copy.get_buffer(name)

    def forward(self, x: Tensor) -> Tensor:
        """Return what the copies make of ``[nodes, trials, features]``."""
        module = self._modules_of[0].train(self.training)
        buffers = [self.get_buffer(f"buffer_{number}") for number in range(len(self._buffer_names))]
        results = []
        for trial in range(self.trials):
            state = dict(zip(self._names, (ours[trial] for ours in self.stacked), strict=True))
            state |= dict(zip(self._buffer_names, (ours[trial] for ours in buffers), strict=True))
            results.append(functional_call(module, state, (x[:, trial],)))
        return torch.stack(results, 1)

    def extra_repr(self) -> str:
        """The module, for ``repr``."""
        return f"{self._modules_of[0]!r}, trials={self.trials}"
