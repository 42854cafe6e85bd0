"""Compute exact statistics for PairNorm in models that see a graph in batches."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError
from pairnorm.nn.pair_norm import PairNorm
from pairnorm.nn.patch import PairNormPatch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode within the context; then restore the mode of every module."""
    is_training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module in model.modules():
            module.training = is_training.get(module, is_training[model])


class _Reached(Exception):
    """Ends a forward pass at the layer whose statistics are computed."""


def _seed_nodes(batch: Any) -> Tensor:
    # A cluster or a whole graph has no sampled neighbors; for whole graphs, PyG's batch_size counts graphs.
    holds_graphs = getattr(batch, "ptr", None) is not None
    count = None if holds_graphs else getattr(batch, "batch_size", None)
    return torch.arange(len(batch.x) if count is None else count)


def calibrate(
    model: nn.Module,
    loader: Iterable[Any],
    forward: Callable[[nn.Module, Any], Any] = lambda model, batch: model(batch.x, batch.edge_index),
    seeds: Callable[[Any], Tensor] = _seed_nodes,
) -> None:
    """Set the statistics of every ``PairNorm(track_running_stats=True)`` to those of all seed nodes.

    It goes through the loader once for each PairNorm, in the order of their calls, in eval, where the layers
    before already normalize by their new statistics. Where every batch has the whole neighborhood of its
    seeds, as many hops as there are convolutions, and every node is a seed, these are exactly the statistics
    of the whole graph.

    Args:
        model: The model, on the device of the batches: one with PairNorm in its code, or one changed by
            ``add_pair_norm(model, track_running_stats=True)``. It stays in training or eval as it was.
        loader: An iterable that can be iterated again, such as PyG's ``NeighborLoader``.
        forward: Calls the model on a batch; default: ``model(batch.x, batch.edge_index)``.
        seeds: Returns the rows of a batch that are its own nodes, not sampled neighbors; default: the first
            ``batch.batch_size``, or all where there is none, as in PyG's ``ClusterLoader``, or where a batch
            consists of whole graphs. Where a batch has ``n_id``, each node counts once.
    """
    with torch.no_grad(), evaluating(model):
        if any(isinstance(module, PairNormPatch) and not module.is_resolved for module in model.modules()):
            for batch in islice(loader, 1):
                # The patch finds its places; PairNorm there has no statistics yet, which ends the pass.
                try:
                    forward(model, batch)
                except PairNormError as error:
                    if error.code != "not-fitted":
                        raise
        norms = [m for m in model.modules() if isinstance(m, PairNorm) and m.track_running_stats]
        if not norms:
            problem = "the model has no PairNorm with running statistics"
            expected = "PairNorm(track_running_stats=True)"
            raise PairNormError(problem, code="nothing-to-calibrate", expected=expected)
        done: list[PairNorm] = []
        while (norm := _calibrate_next(model, loader, norms, done, forward, seeds)) is not None:
            done.append(norm)
    if skipped := [name for name, module in model.named_modules() if module in set(norms) - set(done)]:
        problem = f"the model never calls its PairNorm {skipped[0]!r}"
        raise PairNormError(problem, code="never-called", value=skipped[0], hint="Remove it, or call it.")


def _calibrate_next(
    model: nn.Module, loader: Iterable[Any], norms: list[PairNorm], done: list[PairNorm],
    forward: Callable[[nn.Module, Any], Any], seeds: Callable[[Any], Tensor],
) -> PairNorm | None:  # fmt: skip
    """Compute the statistics of the layer that comes after those done; return it, or None after the last."""
    reached: list[PairNorm] = []
    rows = torch.empty(0, dtype=torch.long)

    def update(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        assert isinstance(norm, PairNorm)
        assert norm.statistics is not None
        if norm in called:
            problem = "a PairNorm with running statistics is called twice in one forward pass"
            hint = "Give every layer a PairNorm of its own."
            raise PairNormError(problem, code="shared-layer", hint=hint)
        called.add(norm)
        if norm not in done:
            if norm not in reached:
                norm.statistics.reset()
                reached.append(norm)
            x = args[0] if args else kwargs["x"]
            norm.statistics.update(x[rows.to(x.device)])
            raise _Reached

    seen = torch.empty(0, dtype=torch.bool)
    with ExitStack() as hooks:
        for norm in norms:
            hooks.callback(norm.register_forward_pre_hook(update, with_kwargs=True).remove)
        for batch in loader:
            called: set[nn.Module] = set()
            rows = seeds(batch)
            if (ids := getattr(batch, "n_id", None)) is not None:  # rows that no earlier batch had
                ids = ids[rows].cpu()
                size = int(ids.max()) + 1 if len(ids) else 0
                if size > len(seen):
                    seen = torch.cat([seen, seen.new_zeros(max(size, 2 * len(seen)) - len(seen))])
                rows = rows[~seen[ids].to(rows.device)]
                seen[ids] = True
            try:
                forward(model, batch)
            except _Reached:
                continue
            if not reached:
                return None
    if not reached:
        problem = "the loader has no batches"
        raise PairNormError(problem, code="empty", hint="Pass one that can be iterated again.")
    if len(reached) > 1:
        problem = "the layers of the model run in an order that differs from batch to batch"
        raise PairNormError(problem, code="wrong-order")
    return reached[0]
