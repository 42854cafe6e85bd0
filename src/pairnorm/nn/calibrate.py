"""Exact statistics for PairNorm in models that see a graph in batches."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError
from pairnorm.nn.pair_norm import PairNorm


class _Reached(Exception):
    """Ends a forward pass at the layer whose statistics are being taken."""


def _forward(model: nn.Module, batch: Any) -> Any:
    return model(batch.x, batch.edge_index)


def _seeds(batch: Any) -> Tensor:
    # A cluster, or a whole graph, has no neighbors beside its own; of whole graphs PyG counts the graphs.
    whole = getattr(batch, "ptr", None) is not None
    own = None if whole else getattr(batch, "batch_size", None)
    return torch.arange(len(batch.x) if own is None else own)


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = _forward,
    seeds: Callable[[Any], Tensor] = _seeds,
) -> None:
    """Replace the statistics of every ``PairNorm(track_running_stats=True)`` by those of all seed nodes.

    Layer by layer, in the order in which they are called: a pass over the loader for each, in eval, by the
    statistics of the layers before. Where every batch has the whole neighborhood of its seeds, as many hops
    as there are convolutions, and every node is a seed, these are exactly the statistics of the whole graph.

    Args:
        model: On the device of the batches; its mode is left as it was.
        loader: What can be gone through again, such as PyG's ``NeighborLoader``.
        forward: Calls the model on a batch; default: ``model(batch.x, batch.edge_index)``.
        seeds: The rows of a batch that are its own nodes and no neighbor's; default: the first
            ``batch.batch_size``, or all where it has none, as PyG's ``ClusterLoader``, or is of whole
            graphs. Where a batch has ``n_id``, a node that comes again is not counted again.
    """
    norms = [one for one in model.modules() if isinstance(one, PairNorm) and one.statistics is not None]
    if not norms:
        problem = "the model has no PairNorm that keeps statistics"
        raise PairNormError(
            problem, code="nothing-to-calibrate", expected="PairNorm(track_running_stats=True)"
        )
    done: list[PairNorm] = []
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            while (found := _next(model, loader, norms, done, forward, seeds)) is not None:
                done.append(found)
    finally:
        for module, mode in training.items():
            module.training = mode


def _next(
    model: nn.Module,
    loader: Iterable[Any],
    norms: list[PairNorm],
    done: list[PairNorm],
    forward: Callable[[nn.Module, Any], Any],
    seeds: Callable[[Any], Tensor],
) -> PairNorm | None:
    """Take the statistics of the layer that comes after those done, and return it; None after the last."""
    reached: list[PairNorm] = []
    rows = torch.empty(0, dtype=torch.long)

    def look(norm: nn.Module, args: tuple[Any, ...]) -> None:
        assert isinstance(norm, PairNorm)
        assert norm.statistics is not None
        if norm in called:
            problem = "a PairNorm that keeps statistics is called twice in one forward pass"
            hint = "Give every layer a PairNorm of its own."
            raise PairNormError(problem, code="shared-layer", hint=hint)
        called.add(norm)
        if norm in done:
            return
        if norm not in reached:
            norm.statistics.reset()
            reached.append(norm)
        norm.statistics.update(args[0][rows.to(args[0].device)])
        raise _Reached

    seen = torch.empty(0, dtype=torch.bool)
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        for batch in loader:
            called: set[nn.Module] = set()
            rows = seeds(batch)
            if (ids := getattr(batch, "n_id", None)) is not None:
                rows, seen = _unseen(rows, ids[rows].cpu(), seen)
            try:
                forward(model, batch)
            except _Reached:
                continue
            if not reached:
                return None
    finally:
        for hook in hooks:
            hook.remove()
    if not reached:
        problem = "the loader has no batches"
        raise PairNormError(problem, code="empty", hint="Pass one that can be gone through again.")
    if len(reached) > 1:
        problem = "the layers of the model come in an order that differs from batch to batch"
        raise PairNormError(problem, code="wrong-order")
    return reached[0]


def _unseen(rows: Tensor, ids: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows whose nodes come for the first time, and which nodes have come."""
    most = int(ids.max()) + 1 if len(ids) else 0
    if most > len(seen):
        seen = torch.cat([seen, seen.new_zeros(max(most, 2 * len(seen)) - len(seen))])
    new = rows[~seen[ids].to(rows.device)]
    seen[ids] = True
    return new, seen
