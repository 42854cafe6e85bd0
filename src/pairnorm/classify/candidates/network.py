"""A fitted SGC, GCN, GAT, GCNII or APPNP: what it says of a graph, and how it is saved."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Saved, State
from pairnorm.classify.candidates.norm_statistics import NormStatistics
from pairnorm.classify.candidates.propagation import SharedPropagation, filled, is_expensive, normalized
from pairnorm.classify.regression import span
from pairnorm.data import Graph
from pairnorm.nn import APPNP, GAT, GCN, GCNII, SGC, Mode, sgc_iterates


@dataclass(frozen=True, eq=False)
class Network:
    """A fitted SGC, GCN, GAT, GCNII or APPNP.

    Args:
        module: the network.
        fill: how missing features are imputed.
        statistics: PairNorm's statistics of the graph that an SGC was fitted on; None without a norm.
    """

    module: Any
    fill: str = "zero"
    statistics: NormStatistics | None = None
    KINDS: ClassVar[dict[str, Any]] = {
        "SGC": SGC, "GCN": GCN, "GAT": GAT, "GCNII": GCNII, "APPNP": APPNP,
    }  # fmt: skip

    @torch.no_grad()
    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logits of every node, [n, models, classes]."""
        module, features = self.module.to(device).eval(), features.to(device)
        if isinstance(module, SGC):
            return self._sgc_logits(graph, features.to_dense())
        found: Tensor = module(
            filled(self.fill, graph, features), normalized(graph, module.adjacency, device)
        )
        return found

    def _sgc_logits(self, graph: Graph, features: Tensor) -> Tensor:
        basis, (*_, state), scale = self.sgc_states(graph, features)
        weight = self.module.weight if basis is None else basis.T @ self.module.weight
        logits: Tensor = torch.einsum("nd,tdc->ntc", state, scale * weight) + self.module.bias
        return logits

    def sgc_states(
        self, graph: Graph, features: Tensor, last: int = 1
    ) -> tuple[Tensor | None, Sequence[Tensor], float]:
        """Return the last states of an SGC, and the scale that its weights are multiplied by.

        States are shared where propagation is expensive and without a norm.

        Returns:
            A basis [d, r], states in its coordinates, [n, r], and the scale; None for r = d.
        """
        module, fill, depth = self.module, self.fill, self.module.num_layers
        if self.statistics is not None:
            mode, own = module.norm.mode, sgc_scale(module.norm.mode, module.norm.scale)
            basis, states = self.statistics.propagate(
                graph, features, fill, module.adjacency, mode, own, last
            )
            return basis, states, module.norm.scale / own
        if graph.missing.dim() == 1 and not is_expensive(graph, features):
            basis, reduced = span(features)
            matrix = normalized(graph, module.adjacency, features.device)
            iterates = sgc_iterates(filled(fill, graph, reduced), matrix)
            return basis, deque(islice(iterates, depth + 1), maxlen=last), 1.0
        shared = SharedPropagation(graph, features, fill, module.adjacency, None)
        return None, [shared.state(step) for step in range(max(0, depth + 1 - last), depth + 1)], 1.0

    def state(self) -> State:
        """Return the adjacency's kind, an initial share, and the weights, whose shapes tell the rest."""
        settings = {"adjacency": self.module.adjacency}
        if isinstance(self.module, GCNII | APPNP):
            settings["alpha"] = self.module.alpha
        tensors = dict(self.module.state_dict())
        return settings, tensors if self.statistics is None else {**tensors, **self.statistics._asdict()}

    @classmethod
    def restore(cls, saved: Saved) -> Self:
        """Build a network as large as its weights are, whatever the settings claim."""
        candidate, tensors = saved.candidate, saved.tensors
        kind = cls.KINDS[candidate.model]
        initial = kind in (GCNII, APPNP)
        first = tensors["weight" if kind is SGC else "first.weight" if initial else "convolutions.0.weight"]
        options: dict[str, Any] = {"adjacency": saved.settings["adjacency"], "num_models": first.shape[0]}
        depth = candidate.depth
        if kind is not SGC:
            options["hidden_channels"] = first.shape[2]
        if kind not in (SGC, APPNP):  # whose depth no weight tells
            depth = len({name.split(".")[1] for name in tensors if name.startswith("convolutions.")})
        if (first.shape[1], depth) != (saved.features, candidate.depth):
            raise ValueError(f"the weights are those of {first.shape[1]} features and {depth} layers")
        if initial:
            options["alpha"] = saved.settings["alpha"]
        else:
            options |= {"norm": candidate.mode, "scale": candidate.scale}
        module = kind(saved.features, saved.classes, depth, **options)
        statistics = NormStatistics.restore(saved) if kind is SGC and candidate.mode else None
        others = () if statistics is None else statistics._fields
        module.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in others})
        return cls(module.eval(), candidate.fill, statistics)


def sgc_scale(mode: Mode, scale: float) -> float:
    """Return the scale to propagate an SGC with: one, as all modes but PN-SCS commute with their scale."""
    return scale if mode == "PN-SCS" else 1.0
