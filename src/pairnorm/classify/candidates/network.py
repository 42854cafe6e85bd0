"""A fitted SGC, GCN, GAT, GCNII or APPNP: its logits for a graph, and how it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.candidate import Saved, State
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.propagation import NormStatistics, Propagation, sgc_scale
from pairnorm.nn import APPNP, GAT, GCN, GCNII, SGC


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
    def logits(self, prepared: PreparedGraph) -> Tensor:
        """Return the logits of every node, [n, models, classes]."""
        module = self.module.to(prepared.device).eval()
        if isinstance(module, SGC):
            return self._sgc_logits(prepared)
        logits: Tensor = module(prepared.features.to(prepared.device), prepared.adjacency(module.adjacency))
        return logits

    def _sgc_logits(self, prepared: PreparedGraph) -> Tensor:
        basis, (state,), scale = self.sgc_states(prepared)
        weight = self.module.weight if basis is None else basis.T @ self.module.weight
        logits: Tensor = torch.einsum("nd,tdc->ntc", state, scale * weight) + self.module.bias
        return logits

    def sgc_states(
        self, prepared: PreparedGraph, last: int = 1
    ) -> tuple[Tensor | None, Sequence[Tensor], float]:
        """Return the last states of an SGC, and the scale that its weights are multiplied by.

        Returns:
            A basis [d, r], states in its coordinates, [n, r], and the scale; None for r = d.
        """
        module, own, scale = self.module, 1.0, 1.0
        mode = None if module.norm is None else module.norm.mode
        if module.norm is not None:
            own = sgc_scale(mode, module.norm.scale)
            scale = module.norm.scale / own
        propagation = Propagation(self.fill, module.adjacency, mode, own)
        basis, states = propagation.fitted_states(prepared, module.num_layers, self.statistics, last)
        return basis, states, scale

    def state(self) -> State:
        """Return the normalization, an initial share, and the weights, whose shapes give the rest."""
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
