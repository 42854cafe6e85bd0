"""Training GCN and GAT: all trials of an architecture in one model."""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from pairnorm.data import Graph
from pairnorm.nn import GAT, GCN
from pairnorm.nn.dropout import keys_from_seeds, step_keys
from pairnorm.train.loop import Loop
from pairnorm.train.problem import Problem
from pairnorm.train.spec import Spec


def build(
    spec: Spec, num_features: int, num_classes: int, seeds: Sequence[int], device: torch.device
) -> GCN | GAT:
    """Build the model of a spec with a trial for each seed, which alone decides its first weights."""
    kind = GCN if spec.model == "GCN" else partial(GAT, heads=spec.heads)
    model: GCN | GAT = kind(
        num_features,
        num_classes,
        depth=spec.depth,
        hidden=spec.hidden,
        norm=None if spec.norm == "none" else spec.norm,
        scale=spec.scale,
        skip=spec.skip,
        dropout=spec.dropout,
        adjacency=spec.adjacency,
        order=spec.order,
        trials=len(seeds),
    )
    model.reset_parameters(seeds)
    return model.to(device)


class GNNRun:
    """One architecture, many (spec, seed) pairs that differ in seed and in what is missing."""

    def __init__(
        self, graph: Graph, trials: Sequence[tuple[Spec, int]], device: torch.device, curves: bool = False
    ) -> None:
        spec, seeds = trials[0][0], [seed for _, seed in trials]
        self.problem = problem = Problem.of(graph, trials, device)
        self.model = model = build(spec, graph.num_features, graph.num_classes, seeds, device)
        keys = keys_from_seeds(seeds, device)

        def loss(epoch: Tensor) -> Tensor:
            model.train()
            layer_keys = step_keys(keys, epoch, 2 * spec.depth).view(spec.depth, 2, -1)
            return problem.losses(model(problem.features, problem.adjacency, layer_keys), "train")

        def accuracy() -> Tensor:
            model.eval()
            return problem.accuracies(model(problem.features, problem.adjacency), "validation")

        parameters = list(model.parameters())
        self.loop = Loop(
            parameters,
            parameters,
            loss,
            accuracy,
            learning_rate=spec.learning_rate,
            weight_decay=spec.weight_decay,
            curves=curves,
        )
        self._epochs = spec.epochs

    def run(self, tick: Callable[[int], None]) -> None:
        """Train to the end and put the kept weights into the model."""
        self.loop.run(self._epochs, tick)
        self.loop.restore()
        self.model.eval()

    @torch.no_grad()
    def evaluate(self) -> tuple[Tensor, Tensor]:
        """Return the last hidden representation and the logits of the kept models."""
        return self.model.hidden_and_logits(self.problem.features, self.problem.adjacency)
