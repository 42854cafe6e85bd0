"""A fitted SGC, GCN, GAT, GCNII or APPNP: what it says of a graph, and how it is saved."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from pairnorm.classify.candidates.base import Saved, State
from pairnorm.classify.candidates.propagation import SharedPropagation, filled, is_expensive, normalized
from pairnorm.classify.regression import span
from pairnorm.data import Graph
from pairnorm.nn import APPNP, GAT, GCN, GCNII, SGC, sgc_iterates


@dataclass(frozen=True, eq=False)
class Network:
    """A fitted SGC, GCN, GAT, GCNII or APPNP, and what stands in for the features it misses."""

    module: Any
    fill: str = "zero"
    KINDS: ClassVar[dict[str, Any]] = {
        "SGC": SGC, "GCN": GCN, "GAT": GAT, "GCNII": GCNII, "APPNP": APPNP,
    }  # fmt: skip

    @torch.no_grad()
    def logits(self, graph: Graph, features: Tensor, device: torch.device) -> Tensor:
        """Return the logits of every node, [n, trials, classes]."""
        module, features = self.module.to(device).eval(), features.to(device)
        mode = getattr(getattr(module, "norm", None), "mode", None)
        shared = isinstance(module, SGC) and mode != "PN-SCS"  # whose scales have walks of their own
        matrix = normalized(graph, module.adjacency, device)
        if isinstance(module, SGC) and graph.missing.dim() == 1:  # few rows span few dimensions to walk in
            basis, features = span(features.to_dense())
            if basis is not None:
                walk = sgc_iterates(filled(self.fill, graph, features), matrix, module.norm)
                state = next(islice(walk, module.num_layers, None))
                return (state @ (basis.T @ module.weight)).transpose(0, 1) + module.bias
        if shared and is_expensive(graph, features):
            return self._walked(graph, features.to_dense())
        found: Tensor = module(filled(self.fill, graph, features), matrix)
        return found

    def _walked(self, graph: Graph, features: Tensor) -> Tensor:
        """Return an SGC's logits of a walk that others may have gone: PairNorm's scale comes afterwards."""
        module, norm = self.module, self.module.norm
        mode, scale = (None, 1.0) if norm is None else (norm.mode, norm.scale)
        state = SharedPropagation(graph, features, self.fill, module.adjacency, mode).state(module.num_layers)
        logits: Tensor = torch.einsum("nd,tdc->ntc", state, scale * module.weight) + module.bias
        return logits

    def state(self) -> State:
        """Return the adjacency's kind, an initial share, and the weights, whose shapes tell the rest."""
        settings = {"adjacency": self.module.adjacency}
        if isinstance(self.module, GCNII | APPNP):
            settings["alpha"] = self.module.alpha
        return settings, dict(self.module.state_dict())

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
        module.load_state_dict(dict(tensors))
        return cls(module.eval(), candidate.fill)
