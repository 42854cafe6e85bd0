"""Training SGC: one propagation serves every depth and every scale, and the epochs are a small regression.

PairNorm commutes with its scale: with scale s every state is s times the state with scale 1 (up to eps). So
the states are made once, with scale 1, and s multiplies the logits before the bias. PN-SCS does not commute;
there every scale is propagated.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.nn import SparseMatrix, pair_norm
from pairnorm.nn.dropout import dropout, keys_from_seeds, step_keys
from pairnorm.nn.models import glorot
from pairnorm.train.loop import Loop
from pairnorm.train.problem import Problem, accuracies
from pairnorm.train.spec import Spec


@dataclass(frozen=True, eq=False)
class Fitted:
    """One depth, fitted.

    Args:
        depth: the number of propagations.
        loop: how it was fitted; the same for all depths, so look at it before the next.
        state: what it was fitted to, with scale 1: ``[nodes, 1 or trials, features]``.
        logits: ``[nodes, trials, scales, classes]``.
    """

    depth: int
    loop: Loop
    state: Tensor
    logits: Tensor


class SGCRun:
    """All depths and scales of (spec, seed) pairs that differ in nothing else but seed and what is missing.

    Args:
        graph: the graph.
        trials: (spec, seed) pairs; depth and scale of their specs are not looked at.
        depths: at which to fit a regression.
        scales: of PairNorm; of one only where there is no norm.
        device: where to run.
        curves: record loss and accuracy of every epoch.
    """

    def __init__(
        self,
        graph: Graph,
        trials: Sequence[tuple[Spec, int]],
        depths: Sequence[int],
        scales: Sequence[float],
        device: torch.device,
        curves: bool = False,
    ) -> None:
        self.problem = Problem.of(graph, trials, device)
        self.spec, self.seeds = trials[0][0], [seed for _, seed in trials]
        self.depths, self.scales, self._curves = sorted(set(depths)), list(scales), curves

    @property
    def factors(self) -> list[float]:
        """What the states are multiplied by, for every scale."""
        return [1.0] if self.spec.norm == "PN-SCS" else self.scales

    def run(self, tick: Callable[[int], None]) -> Iterator[Fitted]:
        """Propagate, and fit at every depth on the way."""
        own_scale = 1.0
        if self.spec.norm == "PN-SCS":
            (own_scale,) = self.scales
        state = self._normalise(_dense(self.problem.features), own_scale)
        fit = _Fit(self.problem, state.size(1), self.spec, self.seeds, self.factors, self._curves)
        for depth in range(1, self.depths[-1] + 1):
            state = self._normalise(self.problem.adjacency @ state, own_scale)
            if depth in self.depths:
                loop, logits = fit(state, tick)
                yield Fitted(depth, loop, state, logits)

    def _normalise(self, state: Tensor, scale: float) -> Tensor:
        return state if self.spec.norm == "none" else pair_norm(state, scale, self.spec.norm)


class _Fit:
    """Regressions on one state after the other, by one loop: on CUDA, an epoch is captured only once."""

    def __init__(
        self,
        problem: Problem,
        states: int,
        spec: Spec,
        seeds: Sequence[int],
        scales: Sequence[float],
        curves: bool,
    ) -> None:
        self._train, self._validation = problem.parts["train"], problem.parts["validation"]
        self._epochs = spec.epochs
        device, trials, width = problem.labels.device, len(seeds), problem.num_features
        # A trial's rows lie together, as the products want them.
        self._rows = rows = torch.zeros(trials, len(self._train), width, device=device)
        self._columns = columns = torch.zeros(states, width, len(self._validation), device=device)
        self._regression = regression = _Regression(
            seeds, scales, width, problem.num_classes, spec.dropout, device
        )
        self._first = regression.weight.detach().clone()
        train_labels, validation_labels = problem.labels[self._train], problem.labels[self._validation]
        first = torch.zeros((), dtype=torch.int32, device=device)
        keys = step_keys(keys_from_seeds(seeds, device), first, spec.epochs)
        self._loop = Loop(
            [regression.weight, regression.bias],
            regression.models,
            lambda epoch: regression.learn(
                rows.transpose(0, 1), train_labels, keys.index_select(0, epoch.view(1))[0]
            ),
            lambda: regression.accuracy(columns, validation_labels),
            learning_rate=spec.learning_rate,
            weight_decay=spec.weight_decay,
            curves=curves,
        )

    @torch.no_grad()
    def __call__(self, state: Tensor, tick: Callable[[int], None]) -> tuple[Loop, Tensor]:
        """Fit to ``[nodes, 1 or trials, features]``; return the loop and the logits of all nodes."""
        self._rows.copy_(state[self._train].transpose(0, 1))
        self._columns.copy_(state[self._validation].permute(1, 2, 0))
        self._regression.weight.copy_(self._first)
        self._regression.bias.zero_()
        self._loop.begin_again()
        self._loop.run(self._epochs, tick)
        self._loop.restore()
        return self._loop, self._regression.logits(state.permute(1, 2, 0))


class _Regression:
    """Logistic regressions of trials x scales; the scales of a trial share its features, not its weights.

    The weight is ``[trials, scales · classes, features]``: one product per trial serves all scales, and
    everything that follows runs along the nodes. Every scale of a seed starts from the same weights.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        scales: Sequence[float],
        features: int,
        classes: int,
        rate: float,
        device: torch.device,
    ) -> None:
        drawn = [glorot((features, classes), torch.Generator().manual_seed(seed)).t() for seed in seeds]
        self.weight = torch.stack(drawn).repeat(1, len(scales), 1).to(device).requires_grad_()
        self.bias = torch.zeros(len(seeds), len(scales), classes, device=device, requires_grad=True)
        self._scale = torch.tensor(scales, device=device).view(-1, 1, 1)
        self._rate = rate

    @property
    def models(self) -> list[Tensor]:
        """Weight ``[trials, scales, features, classes]`` and bias of every model."""
        return [self.weight.view(*self.bias.shape, -1).transpose(2, 3), self.bias]

    def logits(self, columns: Tensor) -> Tensor:
        """Return ``[nodes, trials, scales, classes]`` from ``[1 or trials, features, nodes]``."""
        return self._by_class(columns).permute(3, 0, 1, 2)

    def accuracy(self, columns: Tensor, labels: Tensor) -> Tensor:
        """Return the share of right answers, ``[trials, scales]``."""
        return accuracies(self._by_class(columns), labels)

    def _by_class(self, columns: Tensor) -> Tensor:
        if columns.size(0) == 1:  # one product for all trials
            product = self.weight.flatten(0, 1) @ columns[0]
        else:
            product = torch.bmm(self.weight, columns)
        return product.view(*self.bias.shape, -1) * self._scale + self.bias.unsqueeze(-1)

    @torch.no_grad()
    def learn(self, rows: Tensor, labels: Tensor, keys: Tensor) -> Tensor:
        """Set the gradients of the mean cross-entropy, and return it: ``[trials, scales]``.

        Args:
            rows: training nodes, ``[nodes, trials, features]``, on which dropout falls.
            labels: of these.
            keys: of the dropout.
        """
        if self._rate:
            rows = dropout(rows, self._rate, keys)
        likely = self._by_class(rows.permute(1, 2, 0)).log_softmax(2)
        index = labels.expand(*likely.shape[:2], 1, -1)
        slopes = likely.exp()
        slopes.scatter_add_(2, index, slopes.new_full((), -1.0).expand_as(index))
        slopes /= len(labels)
        self.bias.grad = slopes.sum(-1)
        self.weight.grad = torch.bmm((slopes * self._scale).flatten(1, 2), rows.transpose(0, 1))
        return -likely.gather(2, index).mean((2, 3))


def _dense(features: Tensor | SparseMatrix) -> Tensor:
    """Return ``[nodes, 1 or trials, features]``."""
    if isinstance(features, SparseMatrix):
        features = features.to_dense()
        return features.unsqueeze(1) if features.dim() == 2 else features.transpose(0, 1).contiguous()
    return features.unsqueeze(1) if features.dim() == 2 else features
