"""A fitted SGC, GCN, GAT, GCNII or APPNP: what it says of a graph, and how it is saved."""

from __future__ import annotations

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
        """Return an SGC's logits; states are shared where propagation is expensive and without a norm."""
        module, fill, basis, scale = self.module, self.fill, None, 1.0
        kind, depth = module.adjacency, module.num_layers
        if self.statistics is not None:
            mode, own = module.norm.mode, sgc_scale(module.norm.mode, module.norm.scale)
            basis, state = self.statistics.propagate(graph, features, fill, kind, mode, own)
            scale = module.norm.scale / own
        elif graph.missing.dim() == 1 and not is_expensive(graph, features):
            basis, reduced = span(features)
            walk = sgc_iterates(filled(fill, graph, reduced), normalized(graph, kind, features.device))
            state = next(islice(walk, depth, None))
        else:
            state = SharedPropagation(graph, features, fill, kind, None).state(depth)
        weight = module.weight if basis is None else basis.T @ module.weight
        logits: Tensor = torch.einsum("nd,tdc->ntc", state, scale * weight) + module.bias
        return logits

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
