"""Train in this process: a spec with several seeds, or a job of (spec, seed) pairs."""

from collections.abc import Callable, Iterator, Sequence
from math import nan
from typing import Any

import torch
from torch import Tensor, nn

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.data import Graph
from pairnorm.data.graph import check_graph
from pairnorm.measure import MEASURES, dirichlet_energy
from pairnorm.nn import SGC
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.train.jobs import Job, Pair, plan
from pairnorm.train.loop import CAPTURE, Loop, on_device
from pairnorm.train.methods import Model
from pairnorm.train.per_trial import ModelPerTrial
from pairnorm.train.problem import Problem
from pairnorm.train.result import Trial, check_seeds
from pairnorm.train.spec import Spec
from pairnorm.train.trainers import GNNTrainer, SGCTrainer, bind_graph, sgc_settings

Results = Iterator[dict[Pair, Trial]]
Tick = Callable[[int], None]

MODEL_MEASURES = ("relative_energy", "gradient_first", "gradient_last", "parameters")
"""Measures of a model as a whole: see ``train``."""


def train(
    graph: Graph,
    spec: Spec,
    seeds: Sequence[int],
    device: str | torch.device = "auto",
    *,
    measures: Sequence[str] = (),
    curves: bool = False,
) -> list[Trial]:
    """Train a spec once per seed, all seeds together, and return the trials in the order of the seeds.

    Adam minimizes the cross-entropy on the training nodes; the epoch with the best validation accuracy, or
    AUC (``Spec.metric``), is kept, per trial. A trial's initial weights, dropout and missing features depend
    on its own seed alone.

    Args:
        graph: with a split.
        spec: what to train; its ``dataset`` and ``split`` only name the graph.
        seeds: one for each trial.
        device: ``"auto"`` for CUDA where there is one, else the CPU.
        measures: of the last hidden representation, by their names in ``pairnorm.measure.MEASURES``, such as
            ``row_diff`` and ``effective_rank``. For GCN and GAT also ``relative_energy``, its Dirichlet
            energy over the random walk's steps, divided by ‖X‖²; ``gradient_first`` and ``gradient_last``,
            ‖X‖ ‖∂L/∂X‖ of the training loss after the first and the last hidden convolution, before
            training; and ``parameters``, their number.
        curves: keep training loss and validation accuracy or AUC of every epoch.

    Example:
        >>> from pairnorm.data import load
        >>> spec = Spec("cora", "SGC", 2, epochs=50, learning_rate=0.2, dropout=0.0)
        >>> [trial] = train(load("cora"), spec, seeds=[0], device="cpu")
        >>> trial.test_accuracy > 0.7
        True
    """
    _check(graph, spec)
    where, seeds = find_device(device), check_seeds(seeds)
    trials: dict[Pair, Trial] = {}
    for job in plan(graph, [(spec, seed) for seed in dict.fromkeys(seeds)], where):
        trials.update(train_job(graph, job, where, measures=measures, curves=curves))
    return [trials[spec, seed] for seed in seeds]


def fit(graph: Graph, spec: Spec, seeds: Sequence[int], device: str | torch.device = "auto") -> Model | SGC:
    """Train as ``train`` does and return the models themselves, each at its best epoch.

    Args:
        graph: with a split.
        spec: what to train.
        seeds: one for each trial.
        device: ``"auto"`` for CUDA where there is one, else the CPU.

    Returns:
        One module in evaluation mode, with a trial for each seed; logits are ``[nodes, trials, classes]``.
    """
    _check(graph, spec)
    where = find_device(device)
    pairs = [(spec, seed) for seed in check_seeds(seeds)]
    with on_device(where):
        if spec.model != "SGC":
            trainer = GNNTrainer(graph, pairs, where)
            trainer.fit()
            return trainer.model
        (fitted,) = SGCTrainer(graph, [[pair] for pair in pairs], [spec.depth], where).fit()
        weight, bias = (best.squeeze(1) for best in fitted.loop.best_parameters)  # there is one variant
        model = SGC.from_weights(weight, bias, **sgc_settings(spec, len(pairs)))
        bind_graph(model, graph)
        return model.to(where).eval()


def _check(graph: object, spec: object) -> None:
    """Raise an error unless the arguments are a graph and a spec."""
    check_graph(graph)
    if not isinstance(spec, Spec):
        problem, expected = f"spec is {quoted(spec)}", "a pairnorm.train.Spec, such as Spec('cora', 'GCN', 2)"
        raise PairNormError(problem, code="wrong-type", value=spec, expected=expected)


def find_device(device: str | torch.device = "auto") -> torch.device:
    """Return the device of a name, if torch can use it; ``"auto"`` is CUDA if available."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        result = torch.device(device)
        torch.ones(1, device=result).item()  # torch knows names of devices that are not present
    except (AssertionError, RuntimeError, TypeError) as error:
        raise PairNormError(
            f"device is {quoted(device)}",
            code="unknown-device",
            value=device,
            expected="a device that torch can use",
            hint="Pass {device}.",
            device="auto",
        ) from error
    return result


def check_measures(names: Sequence[str]) -> None:
    """Raise an error unless all are names of measures."""
    for name in names:
        one_of("measure", name, (*MEASURES, *MODEL_MEASURES))


def train_job(
    graph: Graph,
    job: Job,
    device: torch.device,
    *,
    measures: Sequence[str] = (),
    curves: bool = False,
    tick: Callable[[int], None] = lambda epochs: None,
    emit: Callable[[dict[Pair, Trial]], None] = lambda trials: None,
) -> dict[Pair, Trial]:
    """Train a job; if CUDA memory is exhausted, train its halves one after the other.

    Args:
        graph: with a split.
        job: the pairs to train.
        device: on which to train.
        measures: names of measures to compute.
        curves: keep curves.
        tick: called with the part of ``job.cost`` that was done since its last call.
        emit: called with trials as they finish: those of a depth of SGC, or all.
    """
    check_measures(measures)
    trials: dict[Pair, Trial] = {}
    try:
        results = _train_sgc if job.pairs[0][0].model == "SGC" else _train_gnn
        with on_device(device):
            for part in results(graph, job, device, measures, curves, tick):
                emit(part)
                trials |= part
        return trials
    except torch.cuda.OutOfMemoryError:
        halves = Job(tuple(pair for pair in job.pairs if pair not in trials)).halves()
        if len(halves) == 1:
            raise
    torch.cuda.empty_cache()
    for half in halves:
        trials |= train_job(graph, half, device, measures=measures, curves=curves, tick=tick, emit=emit)
    return trials


def _train_gnn(
    graph: Graph, job: Job, device: torch.device, measures: Sequence[str], curves: bool, tick: Tick
) -> Results:
    trainer = GNNTrainer(graph, job.pairs, device, curves)
    layers = len(job.pairs) * job.pairs[0][0].depth
    values: dict[str, Tensor] = {}
    if {"gradient_first", "gradient_last"} & {*measures}:
        with CAPTURE:
            values["gradient_first"], values["gradient_last"] = _gradient_norms(
                trainer.model, trainer.problem
            )
    trainer.fit(lambda epochs: tick(epochs * layers))
    hidden, logits = trainer.evaluate()
    with CAPTURE:  # decompositions and their allocations would end the capture of another thread
        for name in measures:
            if name in MEASURES:
                values[name] = MEASURES[name].function(hidden)
            elif name == "relative_energy":
                values[name] = dirichlet_energy(hidden, graph.adjacency, "rw", relative=True)
            elif name == "parameters":
                count = sum(parameter[0].numel() for parameter in trainer.model.parameters())
                values[name] = torch.tensor(float(count))
    values = {name: values[name] for name in measures} | _aucs(trainer.problem, logits, job.pairs[0][0])
    trials = _trials(job.pairs, trainer.loop, trainer.problem.metrics(logits), values)
    yield dict(zip(job.pairs, trials, strict=True))


def _train_sgc(
    graph: Graph, job: Job, device: torch.device, measures: Sequence[str], curves: bool, tick: Tick
) -> Results:
    variants, requested = job.variants, set(job.pairs)
    trainer = SGCTrainer(graph, variants, job.depths, device, curves)
    factors = torch.tensor(trainer.factors, device=device)
    measures = [name for name in measures if name in MEASURES]
    for fitted in trainer.fit(lambda epochs: tick(epochs * len(variants))):
        values = {
            name: MEASURES[name].function(fitted.state).unsqueeze(-1) * factors ** MEASURES[name].degree
            for name in measures
        }
        values |= _aucs(trainer.problem, fitted.logits, trainer.spec)
        pairs = [(spec.replace(depth=fitted.depth), seed) for own in variants for spec, seed in own]
        trained = _trials(pairs, fitted.loop, trainer.problem.metrics(fitted.logits), values)
        yield {pair: trial for pair, trial in zip(pairs, trained, strict=True) if pair in requested}


def _aucs(problem: Problem, logits: Tensor, spec: Spec) -> dict[str, Tensor]:
    """Return the measures of a spec whose metric is the AUC."""
    parts = ("validation", "test") if spec.metric == "auc" else ()
    return {f"{part}_auc": problem.scores(logits, part, spec.metric) for part in parts}


def _gradient_norms(model: Model, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return ‖X‖ ‖∂L/∂X‖ of the output of the first and the last hidden convolution, for every trial."""
    convolutions = (
        model.convolutions() if isinstance(model, ModelPerTrial) else graph_convolutions(model).values()
    )
    states: list[Tensor] = []

    def record(module: nn.Module, inputs: tuple[Any, ...], state: Tensor) -> None:
        state.retain_grad()
        states.append(state)

    handles = [module.register_forward_hook(record) for module in convolutions]
    # In training mode, for the norms' statistics, but without dropout; running statistics are restored.
    rates, buffers = (model.dropout, model.drop_edge), [buffer.clone() for buffer in model.buffers()]
    model.train()
    model.dropout = model.drop_edge = 0.0
    keys = problem.labels.new_zeros(model.num_keys, 2, model.num_models or 1, dtype=torch.int32)
    try:
        problem.losses(model(problem.features, problem.adjacency, keys), "train").sum().backward()
    finally:
        model.dropout, model.drop_edge = rates
        for handle in handles:
            handle.remove()
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)
    if not states:
        return torch.tensor(nan), torch.tensor(nan)
    gradients = [torch.zeros_like(state) if state.grad is None else state.grad for state in states]
    norms = [
        torch.linalg.vector_norm(state.detach(), dim=(0, -1)) * torch.linalg.vector_norm(grad, dim=(0, -1))
        for state, grad in zip(states, gradients, strict=True)
    ]
    if isinstance(model, ModelPerTrial):  # its trials run one after the other
        norms = [*torch.stack(norms).view(model.num_models, -1).t()]
    # The last convolution gives the logits; the others are hidden.
    hidden = norms[:-1] or norms
    return hidden[0], hidden[-1]


def _trials(
    pairs: Sequence[Pair], loop: Loop, metrics: dict[str, Tensor], measures: dict[str, Tensor]
) -> Iterator[Trial]:
    """Yield the trials of all models, in the order of ``pairs``."""
    shape = loop.best_epoch.shape
    columns = {name: value.flatten().tolist() for name, value in metrics.items()}
    taken = {name: value.expand(shape).flatten().tolist() for name, value in measures.items()}
    best = (loop.best_epoch + 1).flatten().tolist()
    # The loop checks the loss before each step; the loss after the last step is known only now.
    diverged = (loop.diverged | ~metrics["train_loss"].isfinite()).flatten().tolist()
    curves = torch.stack(loop.curves).flatten(2).cpu() if loop.curves else None  # [epochs, 2, models]
    for number, (spec, seed) in enumerate(pairs):
        yield Trial(
            seed=seed,
            diverged=diverged[number],
            best_epoch=best[number],
            measures={name: value[number] for name, value in taken.items()},
            curves=None
            if curves is None
            else {
                "train_loss": curves[:, 0, number].tolist(),
                f"validation_{spec.metric}": curves[:, 1, number].tolist(),
            },
            **{name: value[number] for name, value in columns.items()},
        )
