"""A fitted SGC, GCN, GAT, GCNII or APPNP: its logits for a graph, and how it is saved."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from pairnorm.classify.candidates.candidate import Saved, State
from pairnorm.classify.candidates.prepared import PreparedGraph
from pairnorm.classify.candidates.propagation import MIN_SHARE_PRESENT, NormStatistics, Propagation, sgc_scale
from pairnorm.nn import APPNP, GAT, GCN, GCNII, SGC, PairNorm
from pairnorm.nn.ops.pair_norm import normalize_by


@dataclass(frozen=True, eq=False)
class Network:
    """A fitted SGC, GCN, GAT, GCNII or APPNP.

    Args:
        module: the network.
        fill: how missing features are imputed.
        statistics: PairNorm's statistics of the graph that it was fitted on; None without a norm.
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
        if self.statistics is not None:
            fitted = torch.from_numpy(np.isin(prepared.node_fingerprints, self.statistics.nodes.numpy()))
            if not fitted.all() or len(fitted) != len(self.statistics.nodes):
                module = _with_norm(
                    module, _FittedNorm(module.norm, fitted.to(prepared.device), self.statistics)
                )
        logits: Tensor = module(prepared.features.to(prepared.device), prepared.adjacency(module.adjacency))
        return logits

    @torch.no_grad()
    def fitted_to(self, prepared: PreparedGraph) -> Network:
        """Return a GCN or GAT with PairNorm's statistics of a graph, which new nodes do not change."""
        module = self.module.to(prepared.device).eval()
        if not isinstance(getattr(module, "norm", None), PairNorm) or module.num_layers == 1:
            return self
        norm = _FittedNorm(module.norm, slice(None))
        _with_norm(module, norm)(prepared.features.to(prepared.device), prepared.adjacency(module.adjacency))
        centers, squares = map(torch.stack, zip(*norm.steps, strict=True))
        nodes = torch.from_numpy(prepared.node_fingerprints)
        return replace(self, statistics=NormStatistics(centers, squares, nodes))

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
        statistics = None
        if candidate.mode is not None and (kind is SGC or depth > 1):
            models = () if kind is SGC else (first.shape[0],)
            width = saved.features if kind is SGC else first.shape[2]
            statistics = NormStatistics.restore(
                saved, depth + 1 if kind is SGC else depth - 1, width, *models
            )
        others = () if statistics is None else statistics._fields
        module.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in others})
        return cls(module.eval(), candidate.fill, statistics)


class _FittedNorm(nn.Module):
    """PairNorm by the statistics of some nodes, or by stored ones where most of them are absent.

    Args:
        norm: whose settings.
        rows: the nodes.
        stored: their statistics in the graph that a model was fitted on.
    """

    def __init__(self, norm: PairNorm, rows: Tensor | slice, stored: NormStatistics | None = None) -> None:
        super().__init__()
        self.norm, self.rows = norm, rows
        present = stored is None or int(torch.as_tensor(rows).sum()) >= MIN_SHARE_PRESENT * len(stored.nodes)
        self.stored = None if present else stored
        self.steps: list[tuple[Tensor, Tensor]] = []

    def forward(self, x: Tensor) -> Tensor:
        """Normalize the states of the next layer, [n, models, hidden]."""
        if self.stored is not None:
            number = len(self.steps)
            step = self.stored.centers[number].to(x), self.stored.mean_squares[number].to(x)
        else:
            some = x[self.rows].double()
            center = some.mean(0)
            step = center.float(), (some - center).square().sum(-1, keepdim=True).mean(0).float()
        self.steps.append(step)
        return normalize_by(x, *step, self.norm.scale, self.norm.eps, self.norm.mode)


def _with_norm(module: Any, norm: nn.Module) -> Any:
    """Return a module that shares all but its norm with another."""
    other = copy(module)
    other._modules = {**module._modules, "norm": norm}
    return other
