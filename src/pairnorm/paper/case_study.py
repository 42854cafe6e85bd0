"""The case study: measure and store the distances of node pairs layer by layer."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data import Graph, features_after
from pairnorm.measure import Probe
from pairnorm.measure.diagnosis import Record
from pairnorm.nn import SGC
from pairnorm.sweep.grid import Experiment
from pairnorm.train import Spec, Store
from pairnorm.train.result import UNEXPECTED
from pairnorm.train.trainers import GNNTrainer, sgc_settings

BINS = 60
RECORDS = "case-study"
"""Collection of a store with the measured layers."""
PAIRS = ("connected", "random")


@dataclass(frozen=True)
class Layers:
    """Distances of node pairs in every layer of one model; lists run over the layers, from the first.

    Args:
        test_accuracy: of the trained model; None for SGC, whose states do not depend on training.
        apd: average pairwise distance, by kind of pairs.
        apsd: average pairwise squared distance, by kind of pairs.
        edges: of the bins of the histograms, by kind of pairs, the same in all layers.
        histograms: how many pairs fall into each bin, by kind of pairs and layer.
    """

    test_accuracy: float | None
    apd: dict[str, list[float]]
    apsd: dict[str, list[float]]
    edges: dict[str, list[float]]
    histograms: dict[str, list[list[int]]]


def measure_layers(
    graph: Graph,
    spec: Spec,
    seed: int,
    device: torch.device,
    tick: Callable[[int], None] = lambda epochs: None,
) -> Layers:
    """Train a spec (SGC needs no training) and measure the pairs in every layer but the one of the logits.

    They are all connected pairs and 10,000 random ones, the same in every layer; the APSD of random pairs is
    that of all pairs.
    """
    accuracy = None
    if spec.model == "SGC":
        model: torch.nn.Module = SGC(graph.num_features, graph.num_classes, **sgc_settings(spec))
        model = model.eval().to(device)
        values = features_after(graph, scaling=spec.scaling).values
        inputs: tuple[Any, ...] = (values.to(device), graph.adjacency.to(device))
    else:
        run = GNNTrainer(graph, [(spec, seed)], device)
        run.fit(tick)
        accuracy = float(run.problem.metrics(run.evaluate()[1])["test_accuracy"])
        model, inputs = run.model, (run.problem.features, run.problem.adjacency)
    probe = Probe(model, measures=("apd", "apsd"), adjacency=graph.adjacency.to(device), histograms=True)
    with torch.no_grad(), probe:
        model(*inputs)
    return _layers(probe.records if accuracy is None else probe.records[:-1], accuracy)


def _layers(records: Sequence[Record], accuracy: float | None) -> Layers:
    distances = {kind: [record.distances[kind].flatten() for record in records] for kind in PAIRS}
    # Most bins would hold nothing but outliers; what lies beyond the last edge is counted in the last bin.
    tops = {kind: max(float(one.quantile(0.995)) for one in some) for kind, some in distances.items()}
    edges = {kind: torch.linspace(0, top or 1.0, BINS + 1) for kind, top in tops.items()}

    def histogram(values: Tensor, kind: str) -> list[int]:
        bins = torch.bucketize(values.cpu().contiguous(), edges[kind][1:-1], right=True)
        return [int(count) for count in torch.bincount(bins, minlength=BINS)]

    return Layers(
        test_accuracy=None if accuracy is None else _rounded(accuracy),
        apd={kind: [_rounded(one.mean().item()) for one in some] for kind, some in distances.items()},
        apsd={kind: [_rounded(one.measures[f"apsd_{kind}"].item()) for one in records] for kind in PAIRS},
        edges={kind: [_rounded(edge) for edge in edges[kind].tolist()] for kind in PAIRS},
        histograms={kind: [histogram(one, kind) for one in some] for kind, some in distances.items()},
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def read_layers(store: Store) -> dict[Spec, Layers]:
    """Read the layers of every spec that has been measured."""
    try:
        records = store.records(RECORDS)
        return {Spec.parse(text): _validated(Layers(**values)) for text, values in records.items()}
    except UNEXPECTED as error:
        problem = f"the case study in {store.path} is damaged ({quoted(str(error))})"
        hint = "Restore a copy of the store."
        raise PairNormError(problem, code="file-damaged", value=store.path, hint=hint) from None


def _validated(layers: Layers) -> Layers:
    """Return layers that can be drawn; raise an error for others."""
    numbers: list[tuple[int, list[Any]]] = [
        (1, [0 if layers.test_accuracy is None else layers.test_accuracy])
    ]
    for kind in PAIRS:
        depth, counts = len(layers.apd[kind]), layers.histograms[kind]
        numbers += [(depth, layers.apd[kind]), (depth, layers.apsd[kind])]
        numbers.append((len(counts[0]) + 1, layers.edges[kind]))
        numbers += [(len(counts[0]), some) for some in counts]
        if len(counts) != depth:
            raise ValueError(f"{len(counts)} histograms of {depth} layers")
    for expected, values in numbers:
        is_valid = all(type(value) in (int, float) and isfinite(value) for value in values)
        if len(values) != expected or not is_valid:
            raise ValueError(f"{expected} finite numbers are expected")
    return layers


def write_layers(store: Store, layers: Mapping[Spec, Layers]) -> None:
    """Write the layers of some specs atomically."""
    store.write_records(RECORDS, {spec.text: asdict(one) for spec, one in layers.items()})


def studied(layers: Mapping[Spec, Layers], experiment: Experiment, model: str) -> dict[str, Layers]:
    """Return what was measured of a model, by norm."""
    specs = [spec for cell in experiment.cells() for spec in experiment.candidates(cell)]
    return {spec.norm: layers[spec] for spec in specs if spec.model == model and spec in layers}


def write_tensorboard(by_norm: dict[str, Layers], model: str, folder: Any) -> None:
    """Write means and histograms as TensorBoard shows them, the layer as the step."""
    from torch.utils.tensorboard import SummaryWriter  # type: ignore[attr-defined]

    for norm, layers in by_norm.items():
        with SummaryWriter(f"{folder}/{model}-{norm}") as writer:
            for kind in PAIRS:
                for number, counts in enumerate(layers.histograms[kind]):
                    writer.add_scalar(f"apd_{kind}", layers.apd[kind][number], number + 1)
                    writer.add_scalar(f"apsd_{kind}", layers.apsd[kind][number], number + 1)
                    writer.add_histogram_raw(
                        f"distance_{kind}",
                        min=layers.edges[kind][0],
                        max=layers.edges[kind][-1],
                        num=sum(counts),
                        sum=layers.apd[kind][number] * sum(counts),
                        sum_squares=layers.apsd[kind][number] * sum(counts),
                        bucket_limits=layers.edges[kind][1:],
                        bucket_counts=counts,
                        global_step=number + 1,
                    )
