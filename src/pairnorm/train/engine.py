"""Training a job: from (spec, seed) pairs to their trials, in this process."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from pairnorm import measure
from pairnorm.data import Graph
from pairnorm.errors import PairNormError, one_of
from pairnorm.nn import GAT, GCN, SGC
from pairnorm.train.jobs import Job, Pair, plan
from pairnorm.train.loop import Loop
from pairnorm.train.result import Trial
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNRun, SGCRun

MEASURES: dict[str, Callable[[Tensor], Tensor]] = {
    "row_diff": measure.row_diff,  # type: ignore[dict-item]
    "col_diff": measure.col_diff,  # type: ignore[dict-item]
    "tpsd": measure.tpsd,
    "effective_rank": measure.effective_rank,
}
DEGREES = {"row_diff": 1, "col_diff": 0, "tpsd": 2, "effective_rank": 0}
"""States that are s times as large have measures that are s to this power times as large."""


def train(
    graph: Graph,
    spec: Spec,
    seeds: Sequence[int],
    device: str | torch.device = "auto",
    *,
    measures: Sequence[str] = (),
    curves: bool = False,
) -> list[Trial]:
    """Train a spec once for every seed, side by side, and return the trials in the order of the seeds.

    Adam minimises the cross-entropy on the training nodes; the epoch with the best validation accuracy is
    kept, per trial. A trial's initial weights, dropout and missing features depend on its own seed alone.

    Args:
        graph: with a split.
        spec: what to train; its ``dataset`` and ``split`` only name the graph.
        seeds: one for each trial.
        device: ``"auto"`` for CUDA where there is one, else the CPU.
        measures: of the last hidden representation: ``row_diff``, ``col_diff``, ``tpsd``, ``effective_rank``.
        curves: keep training loss and validation accuracy of every epoch.

    Example:
        >>> from pairnorm.data import load
        >>> spec = Spec("cora", "SGC", 2, epochs=50, learning_rate=0.2, dropout=0.0)
        >>> [trial] = train(load("cora"), spec, seeds=[0], device="cpu")
        >>> trial.test_accuracy > 0.7
        True
    """
    where = find_device(device)
    found: dict[Pair, Trial] = {}
    for job in plan(graph, [(spec, seed) for seed in dict.fromkeys(seeds)], where):
        found.update(execute(graph, job, where, measures=measures, curves=curves))
    return [found[spec, seed] for seed in seeds]


def fit(
    graph: Graph, spec: Spec, seeds: Sequence[int], device: str | torch.device = "auto"
) -> GCN | GAT | SGC:
    """Train as ``train`` does and return the models themselves, each at its best epoch.

    Args:
        graph: with a split.
        spec: what to train.
        seeds: one for each trial.
        device: ``"auto"`` for CUDA where there is one, else the CPU.

    Returns:
        One module in evaluation mode, with a trial for each seed; logits are ``[nodes, trials, classes]``.
    """
    where = find_device(device)
    pairs = [(spec, seed) for seed in seeds]
    if spec.model != "SGC":
        run = GNNRun(graph, pairs, where)
        run.run(lambda epochs: None)
        return run.model
    (fitted,) = SGCRun(graph, pairs, [spec.depth], [spec.scale], where).run(lambda epochs: None)
    weight, bias = (kept.squeeze(1) for kept in fitted.loop.kept)  # of the scales, there is one
    model = SGC.from_weights(
        weight,
        bias,
        depth=spec.depth,
        norm=None if spec.norm == "none" else spec.norm,
        scale=spec.scale,
        dropout=spec.dropout,
        adjacency=spec.adjacency,
    )
    return model.to(where).eval()


def find_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device of a name; ``"auto"`` is CUDA where there is one."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = torch.device(device)
    except RuntimeError as error:
        raise PairNormError(f"device is {device!r}; expected 'auto', 'cpu' or 'cuda'") from error
    if found.type == "cuda" and not torch.cuda.is_available():
        raise PairNormError(f"device is {device!r}, but torch finds no CUDA device; use 'auto' or 'cpu'")
    return found


def execute(
    graph: Graph,
    job: Job,
    device: torch.device,
    *,
    measures: Sequence[str] = (),
    curves: bool = False,
    tick: Callable[[int], None] = lambda epochs: None,
    emit: Callable[[dict[Pair, Trial]], None] = lambda found: None,
) -> dict[Pair, Trial]:
    """Train a job; out of CUDA memory, its halves one after the other.

    Args:
        graph: with a split.
        job: the pairs to train.
        device: where to.
        measures: names of measures to take.
        curves: keep curves.
        tick: is told how much of ``job.cost`` has been done since it was last told.
        emit: is given the trials as they finish: those of a depth of SGC, or all.
    """
    for name in measures:
        one_of("measure", name, list(MEASURES))
    found: dict[Pair, Trial] = {}
    try:
        results = _execute_sgc if job.pairs[0][0].model == "SGC" else _execute_gnn
        for part in results(graph, job, device, measures, curves, tick):
            emit(part)
            found |= part
        return found
    except torch.cuda.OutOfMemoryError:
        halves = Job(tuple(pair for pair in job.pairs if pair not in found)).halves()
        if len(halves) == 1:
            raise
    torch.cuda.empty_cache()
    for half in halves:
        found |= execute(graph, half, device, measures=measures, curves=curves, tick=tick, emit=emit)
    return found


Results = Iterator[dict[Pair, Trial]]
Tick = Callable[[int], None]


def _execute_gnn(
    graph: Graph, job: Job, device: torch.device, measures: Sequence[str], curves: bool, tick: Tick
) -> Results:
    run = GNNRun(graph, job.pairs, device, curves)
    layers = len(job.pairs) * job.pairs[0][0].depth
    run.run(lambda epochs: tick(epochs * layers))
    hidden, logits = run.evaluate()
    values = {name: MEASURES[name](hidden) for name in measures}
    trials = _trials(job.pairs, run.loop, run.problem.metrics(logits), values)
    yield dict(zip(job.pairs, trials, strict=True))


def _execute_sgc(
    graph: Graph, job: Job, device: torch.device, measures: Sequence[str], curves: bool, tick: Tick
) -> Results:
    trials, scales, wanted = job.trials, job.scales, set(job.pairs)
    run = SGCRun(graph, trials, job.depths, scales, device, curves)
    factors = torch.tensor(run.factors, device=device)
    for fitted in run.run(lambda epochs: tick(epochs * len(trials))):
        values = {
            name: MEASURES[name](fitted.state).unsqueeze(-1) * factors ** DEGREES[name] for name in measures
        }
        pairs = [
            (spec.replace(depth=fitted.depth, scale=scale), seed) for spec, seed in trials for scale in scales
        ]
        found = _trials(pairs, fitted.loop, run.problem.metrics(fitted.logits), values)
        yield {pair: trial for pair, trial in zip(pairs, found, strict=True) if pair in wanted}


def _trials(
    pairs: Sequence[Pair], loop: Loop, metrics: dict[str, Tensor], measures: dict[str, Tensor]
) -> Iterator[Trial]:
    """Read the results of all models off their tensors, which count the models in the order of ``pairs``."""
    shape = loop.best_epoch.shape
    columns = {name: value.flatten().tolist() for name, value in metrics.items()}
    taken = {name: value.expand(shape).flatten().tolist() for name, value in measures.items()}
    best = (loop.best_epoch + 1).flatten().tolist()
    # The loop sees a loss before each step; that a trial's last step went astray shows only now.
    diverged = (loop.diverged | ~metrics["train_loss"].isfinite()).flatten().tolist()
    curves = torch.stack(loop.curves).flatten(2).cpu() if loop.curves else None  # [epochs, 2, models]
    for number, (_, seed) in enumerate(pairs):
        yield Trial(
            seed=seed,
            diverged=diverged[number],
            best_epoch=best[number],
            measures={name: value[number] for name, value in taken.items()},
            curves=None
            if curves is None
            else {
                "train_loss": curves[:, 0, number].tolist(),
                "validation_accuracy": curves[:, 1, number].tolist(),
            },
            **{name: value[number] for name, value in columns.items()},
        )
