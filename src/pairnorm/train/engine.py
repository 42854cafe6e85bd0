"""Plan jobs of (spec, seed) pairs that train together, and train them in this process."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, one_of, quoted
from pairnorm.data import Graph
from pairnorm.data.graph import check_graph
from pairnorm.measure import MEASURES, dirichlet_energy
from pairnorm.nn import SGC
from pairnorm.nn.find_convolutions import graph_convolutions
from pairnorm.train.loop import CAPTURE, Loop, on_device
from pairnorm.train.methods import Model, ModelPerTrial
from pairnorm.train.problem import Problem
from pairnorm.train.result import Trial, check_seed, check_seeds, wrong_type
from pairnorm.train.spec import ENTRIES, Spec
from pairnorm.train.trainers import GNNTrainer, SGCTrainer, bind_graph, sgc_settings

MODEL_MEASURES = ("relative_energy", "gradient_first", "gradient_last", "parameters")
"""Measures of a model as a whole: see ``train``."""

Pair = tuple[Spec, int]
"""A spec and a seed: one trial."""
Tick = Callable[[int], None]

# Kernels process one trial after the other: the states of a few trials make the overhead of Python small.
CACHE_BYTES = 2**21
# States of SGC are wider: a few trials share the cost of an epoch besides its products.
SGC_BYTES = 2**27
# Several jobs run at once on CUDA and share its memory. Jobs of GCN and GAT need less than half of the memory
# that ``_trials_per_job`` assumes, jobs of SGC three quarters.
CUDA_STREAMS = 6
CUDA_SHARE = 0.2


@dataclass(frozen=True)
class Job:
    """(spec, seed) pairs of one architecture on one graph that are trained together."""

    pairs: tuple[Pair, ...]

    @property
    def trials(self) -> list[Pair]:
        """The (spec, seed) pairs along the trial axis; depths and variants of an SGC share a trial."""
        return list(_by_trial(self.pairs))

    @property
    def depths(self) -> list[int]:
        """The depths in rising order."""
        return sorted({spec.depth for spec, _ in self.pairs})

    @property
    def variants(self) -> list[list[Pair]]:
        """For every trial of SGC, its (spec, seed) pairs of each scale and optimizer, sorted.

        All trials have equally many variants: the last one of a trial is repeated if others have more.
        """
        by_trial = [{_variant(pair): pair for pair in pairs} for pairs in _by_trial(self.pairs).values()]
        most = max(map(len, by_trial))
        variants = ([pairs[variant] for variant in sorted(pairs)] for pairs in by_trial)
        return [pairs + pairs[-1:] * (most - len(pairs)) for pairs in variants]

    @property
    def cost(self) -> int:
        """The work in layer-epochs, for progress bars. An epoch of an SGC counts as one layer."""
        spec = self.pairs[0][0]
        layers = len(self.depths) if spec.model == "SGC" else spec.depth
        return spec.epochs * len(self.trials) * layers

    def split(self) -> "list[Job]":
        """Split the trials into two jobs; a single trial stays one job."""
        return _split(self.pairs, (len(self.trials) + 1) // 2)


def plan(
    graph: Graph, pairs: Iterable[Pair], device: torch.device | None, cores: int | None = None
) -> list[Job]:
    """Group pairs by architecture, then split the groups to fit the device. Long jobs come first.

    Args:
        graph: of all pairs.
        pairs: to train.
        device: on which they train; None for workers of a cluster, which plan their part again.
        cores: number of workers that share the trials. Default: the cores of this machine.
    """
    if graph.num_features == 0:
        problem = f"graph {graph.name!r} has no features"
        raise PairNormError(problem, code="no-features", value=0, expected="at least one")
    cuda = device is not None and device.type == "cuda"
    groups: dict[Spec, list[Pair]] = defaultdict(list)
    for spec, seed in sorted(pairs, key=_variant) if cuda else pairs:
        groups[_architecture(spec, cuda)].append((spec, check_seed(seed)))
    jobs = []
    for shared, group in groups.items():
        job, size = Job(tuple(group)), len(group)
        if device is not None:
            size = _trials_per_job(graph, shared, device, len(job.variants[0]) if cuda else 1)
        if not cuda:  # no core should be idle while another has all trials
            size = min(size, -(-len(job.trials) // (cores or os.cpu_count() or 1)))
        jobs += _split(group, size)
    return sorted(jobs, key=lambda job: -job.cost)


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
    _check_types(graph, spec)
    where, seeds = find_device(device), check_seeds(seeds)
    trials: dict[Pair, Trial] = {}
    for job in plan(graph, [(spec, seed) for seed in dict.fromkeys(seeds)], where):
        for finished in train_job(graph, job, where, measures=measures, curves=curves):
            trials |= finished
    return [trials[spec, seed] for seed in seeds]


def fit(graph: Graph, spec: Spec, seeds: Sequence[int], device: str | torch.device = "auto") -> Model | SGC:
    """Train as ``train`` does and return the models themselves, each at its best epoch.

    Returns:
        One module in evaluation mode, with a trial for each seed; logits are ``[nodes, trials, classes]``.
    """
    _check_types(graph, spec)
    where = find_device(device)
    pairs = [(spec, seed) for seed in check_seeds(seeds)]
    with on_device(where):
        if spec.model != "SGC":
            trainer = GNNTrainer(graph, pairs, where)
            trainer.fit()
            return trainer.model
        (fitted,) = SGCTrainer(graph, [[pair] for pair in pairs], [spec.depth], where).fit_depths()
        weight, bias = (best.squeeze(1) for best in fitted.loop.best_parameters)  # there is one variant
        model = SGC.from_weights(weight, bias, **sgc_settings(spec, len(pairs)))
        bind_graph(model, graph)
        return model.to(where).eval()


def _check_types(graph: object, spec: object) -> None:
    """Raise an error unless these are a graph and a spec."""
    check_graph(graph)
    if not isinstance(spec, Spec):
        raise wrong_type("spec", spec, "a pairnorm.train.Spec, such as Spec('cora', 'GCN', 2)")


def find_device(device: str | torch.device = "auto") -> torch.device:
    """Return a torch device by name, or raise an error; ``"auto"`` is CUDA if available, else the CPU."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        result = torch.device(device)
        torch.ones(1, device=result).item()  # torch knows names of devices that are not present
    except (AssertionError, RuntimeError, TypeError) as error:
        problem, expected = f"device is {quoted(device)}", "a device that torch can use"
        other = {"hint": "Pass {device}.", "device": "auto"}
        raise PairNormError(
            problem, code="unknown-device", value=device, expected=expected, **other
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
    tick: Tick = lambda epochs: None,
) -> Iterator[dict[Pair, Trial]]:
    """Yield the trials of a job as they finish: those of a depth of SGC, or all.

    If CUDA memory is exhausted, the halves of the job train one after the other. ``tick`` is called with the
    part of ``job.cost`` that was done since its last call; other arguments as in ``train``.
    """
    check_measures(measures)
    pending = dict.fromkeys(job.pairs)
    try:
        with on_device(device):
            for trials in _train(graph, job, device, measures, curves, tick):
                for pair in trials:
                    del pending[pair]
                yield trials
        return
    except torch.cuda.OutOfMemoryError:
        halves = Job(tuple(pending)).split()
        if len(halves) == 1:
            raise
    torch.cuda.empty_cache()
    for half in halves:
        yield from train_job(graph, half, device, measures=measures, curves=curves, tick=tick)


def _train(
    graph: Graph, job: Job, device: torch.device, measures: Sequence[str], curves: bool, tick: Tick
) -> Iterator[dict[Pair, Trial]]:
    """Train a job whose states fit into memory; see ``train_job``."""
    spec, requested = job.pairs[0][0], set(job.pairs)
    values: dict[str, Tensor] = {}
    trainer: GNNTrainer | SGCTrainer
    if spec.model == "SGC":
        trainer = SGCTrainer(graph, job.variants, job.depths, device, curves)
        measures = [name for name in measures if name in MEASURES]
    else:
        trainer = GNNTrainer(graph, job.pairs, device, curves)
        values["parameters"] = torch.tensor(float(sum(p[0].numel() for p in trainer.model.parameters())))
        if {"gradient_first", "gradient_last"} & {*measures}:
            with CAPTURE:
                norms = _gradient_norms(trainer.model, trainer.problem)
            values["gradient_first"], values["gradient_last"] = norms
    cost = job.cost // (spec.epochs * len(job.depths))
    for fitted in trainer.fit_depths(lambda epochs: tick(epochs * cost)):
        state, factors = fitted.state, fitted.factors
        with CAPTURE:  # decompositions and their allocations would end the capture of another thread
            for name in {*measures} & MEASURES.keys():
                value = MEASURES[name].function(state).view(-1, *[1] * (factors.dim() - 1))
                values[name] = value * factors ** MEASURES[name].degree
            if "relative_energy" in measures:
                values["relative_energy"] = dirichlet_energy(state, graph.adjacency, "rw", relative=True)
        measured = {name: values[name] for name in measures}
        if spec.metric == "auc":
            for part in ("validation", "test"):
                measured[f"{part}_auc"] = trainer.problem.scores(fitted.logits, part, spec.metric)
        pairs = [(spec.replace(depth=fitted.depth), seed) for spec, seed in trainer.pairs]
        trained = _trials(pairs, fitted.loop, trainer.problem.metrics(fitted.logits), measured)
        yield {pair: trial for pair, trial in zip(pairs, trained, strict=True) if pair in requested}


def _gradient_norms(model: Model, problem: Problem) -> tuple[Tensor, Tensor]:
    """Return ‖X‖ ‖∂L/∂X‖ of the output of the first and the last hidden convolution, for every trial."""
    convolutions = (
        model.convolutions() if isinstance(model, ModelPerTrial) else graph_convolutions(model).values()
    )
    states: list[Tensor] = []
    handles = [
        module.register_forward_hook(lambda module, inputs, state: states.append(state))
        for module in convolutions
    ]
    # In training mode, for the norms' statistics, but without dropout; running statistics are restored.
    rates, buffers = (model.dropout, model.drop_edge), [buffer.clone() for buffer in model.buffers()]
    model.train()
    model.dropout = model.drop_edge = 0.0
    keys = problem.labels.new_zeros(model.num_keys, 2, model.num_models or 1, dtype=torch.int32)
    try:
        loss = problem.losses(model(problem.features, problem.adjacency, keys), "train").sum()
        if not states:
            return torch.tensor(nan), torch.tensor(nan)
        gradients = torch.autograd.grad(loss, states, allow_unused=True, materialize_grads=True)
    finally:
        model.dropout, model.drop_edge = rates
        for handle in handles:
            handle.remove()
        for buffer, before in zip(model.buffers(), buffers, strict=True):
            buffer.copy_(before)
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
    # The loop checks the loss before each step; the loss after the last step is known only now.
    diverged = loop.diverged | ~metrics["train_loss"].isfinite()
    numbers = metrics | {"diverged": diverged, "best_epoch": loop.best_epoch + 1}
    columns = {name: value.flatten().tolist() for name, value in numbers.items()}
    shape = loop.best_epoch.shape
    measured = {name: value.expand(shape).flatten().tolist() for name, value in measures.items()}
    curves = torch.stack(loop.curves).flatten(2).permute(2, 1, 0).tolist() if loop.curves else None
    for number, (spec, seed) in enumerate(pairs):
        names = "train_loss", f"validation_{spec.metric}"
        yield Trial(
            seed=seed,
            measures={name: values[number] for name, values in measured.items()},
            curves=None if curves is None else dict(zip(names, curves[number], strict=True)),
            **{name: values[number] for name, values in columns.items()},
        )


def _by_trial(pairs: Iterable[Pair]) -> dict[Pair, list[Pair]]:
    """Group (spec, seed) pairs by trial: those of an SGC that differ in depth, scale and optimizer."""
    by_trial: dict[Pair, list[Pair]] = defaultdict(list)
    for spec, seed in pairs:
        by_trial[_propagated_spec(spec), seed].append((spec, seed))
    return by_trial


@lru_cache(2**16)  # a grid asks for the same with every seed
def _architecture(spec: Spec, cuda: bool) -> Spec:
    """Return a spec that is equal for all pairs that may share a job.

    They may differ in missing features, and for SGC also in depth and scale.

    On CUDA, jobs also mix optimizers, since a few trials do not fill a GPU. On a CPU they do not, so that a
    trial gives the same bits with any other trials in its job.
    """
    replaced: dict[str, Any] = {
        "missing_rate": 1.0,
        "missing_kind": "entries" if spec.missing_kind in ENTRIES else "vectors",
    }
    if cuda:
        replaced |= {"learning_rate": 1.0, "weight_decay": 0.0}
    if spec.model == "SGC":
        replaced |= {"depth": 1, "scale": spec.scale if spec.norm == "PN-SCS" else 1.0}
    return spec.replace(**replaced)


@lru_cache(2**16)
def _propagated_spec(spec: Spec) -> Spec:
    """Return a spec that is equal for all specs of one trial."""
    changes = {"depth": 1, "scale": 1.0, "learning_rate": 1.0, "weight_decay": 0.0}
    return spec.replace(**changes) if spec.model == "SGC" else spec


def _variant(pair: Pair) -> tuple[float, ...]:
    """Return the sort key of a variant: variants of one optimizer are adjacent, and share a step."""
    spec, _ = pair
    return spec.learning_rate, spec.weight_decay, spec.scale


def _split(pairs: Sequence[Pair], size: int) -> list[Job]:
    """Split pairs into jobs of at most ``size`` trials and about equal size."""
    trials = list(_by_trial(pairs).values())
    count = -(-len(trials) // size)
    parts: list[list[Pair]] = [[] for _ in range(count)]
    for position, group in enumerate(trials):
        parts[position * count // len(trials)] += group
    return [Job(tuple(part)) for part in parts]


def _trials_per_job(graph: Graph, spec: Spec, device: torch.device, variants: int) -> int:
    """Return the number of trials of one job, with ``variants`` variants each."""
    width = graph.num_features if spec.model == "SGC" else spec.hidden
    state = 4 * graph.num_nodes * width
    imputed = 0 if spec.imputation == "zero" else 4 * graph.num_nodes * graph.num_features
    if device.type != "cuda":
        return max(1, (SGC_BYTES if spec.model == "SGC" else CACHE_BYTES) // (state + imputed))
    # The backward pass keeps a few states per layer; attention keeps scores too.
    states = 4 if spec.model == "SGC" else {"GCN": 6, "GAT": 9}[spec.model] * spec.depth
    states *= 1 if spec.method == "none" else 2  # methods without kernels keep more
    features = 12 * (graph.features.values().numel() if graph.features.layout == torch.sparse_csr else 0)
    features += 6 * imputed  # during imputation and dropout
    if spec.model == "SGC":  # weights, initial and best weights, gradients, Adam's state; logits
        features += 4 * variants * graph.num_classes * (8 * graph.num_features + 5 * graph.num_nodes)
    free, _ = torch.cuda.mem_get_info(device)
    return max(1, int(CUDA_SHARE * free) // (states * state + features))
