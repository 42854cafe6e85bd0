"""The case study: how far connected and random pairs are apart in every layer, and the file that says so.

The store has a row per trial; what is here has a row per layer and histograms. It lies beside the store as
JSON, ``results.case-study.json`` for ``results.sqlite``: small, readable, and copied along with it.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pairnorm.data import Graph, features_after
from pairnorm.errors import PairNormError
from pairnorm.measure import Probe
from pairnorm.measure.record import Record
from pairnorm.nn import SGC
from pairnorm.train import Spec
from pairnorm.train.gnn import GNNRun
from pairnorm.writing import whole_file

BINS = 60
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

    All connected pairs and 10,000 random ones are taken, the same in every layer; the APSD of random pairs is
    that of all pairs.

    Args:
        graph: with a split.
        spec: what to train.
        seed: of the trial.
        device: where to.
        tick: is told of epochs that have passed.
    """
    accuracy = None
    if spec.model == "SGC":
        norm = None if spec.norm == "none" else spec.norm
        model: torch.nn.Module = SGC(
            graph.num_features, graph.num_classes, spec.depth, norm, spec.scale, adjacency=spec.adjacency
        )
        model = model.eval().to(device)
        values = features_after(graph, scaling=spec.scaling).values
        inputs: tuple[Any, ...] = (values.to(device), graph.adjacency.to(device))
    else:
        run = GNNRun(graph, [(spec, seed)], device)
        run.run(tick)
        accuracy = float(run.problem.metrics(run.evaluate()[1])["test_accuracy"])
        model, inputs = run.model, (run.problem.features, run.problem.adjacency)
    probe = Probe(model, measures=("apd", "apsd"), adjacency=graph.adjacency.to(device))
    with torch.no_grad(), probe:
        model(*inputs)
    return _layers(probe.records if accuracy is None else probe.records[:-1], accuracy)


def _layers(records: Sequence[Record], accuracy: float | None) -> Layers:
    distances = {kind: [record.distances[kind].flatten() for record in records] for kind in PAIRS}
    edges = {kind: _edges(distances[kind]) for kind in PAIRS}
    apsd = {kind: [_rounded(record.measures[f"apsd_{kind}"].item()) for record in records] for kind in PAIRS}
    return Layers(
        test_accuracy=None if accuracy is None else _rounded(accuracy),
        apd={kind: [_rounded(values.mean().item()) for values in distances[kind]] for kind in PAIRS},
        apsd=apsd,
        edges={kind: [_rounded(edge) for edge in edges[kind].tolist()] for kind in PAIRS},
        histograms={kind: [_histogram(values, edges[kind]) for values in distances[kind]] for kind in PAIRS},
    )


def _edges(distances: Sequence[Tensor]) -> Tensor:
    # Most bins would hold nothing but outliers; what lies beyond the last edge is counted in the last bin.
    top = max(float(values.quantile(0.995)) for values in distances)
    return torch.linspace(0, top or 1.0, BINS + 1)


def _histogram(values: Tensor, edges: Tensor) -> list[int]:
    place = torch.bucketize(values.cpu().contiguous(), edges[1:-1], right=True)
    return [int(count) for count in torch.bincount(place, minlength=BINS)]


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def file_beside(store: str | os.PathLike[str]) -> Path:
    """Return where the case study of a store lies."""
    path = Path(store)
    return path.with_name(f"{path.name.split('.')[0]}.case-study.json")


def read_layers(path: Path) -> dict[Spec, Layers]:
    """Read the layers of every spec measured so far; of no file, none."""
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {Spec.parse(text): Layers(**values) for text, values in found.items()}
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError, TypeError) as error:
        raise PairNormError(
            f"{path} is no case study ({error}); remove it and run case-study again."
        ) from None


def write_layers(path: Path, layers: dict[Spec, Layers]) -> None:
    """Write the layers of all specs, whole or not at all."""
    entries = {spec.text: asdict(layers[spec]) for spec in sorted(layers, key=lambda spec: spec.text)}
    with whole_file(path) as draft:
        draft.write_text(json.dumps(entries, indent=0) + "\n", encoding="utf-8")


def lacking(specs: Sequence[Spec], path: Path) -> list[Spec]:
    """Return the specs that have not been measured yet."""
    found = read_layers(path)
    return [spec for spec in specs if spec not in found]
