"""``pairnorm fit``: labels for all nodes of a user's graph, and a report on how far to trust them."""

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from pairnorm.commands.console import console
from pairnorm.commands.options import (
    Categorical,
    Delimiter,
    Device,
    Edges,
    Id,
    Ignore,
    Nodes,
    Source,
    Split,
    Target,
    Weight,
    read_graph,
    show_graph,
    small_table,
    steps,
    typed,
)
from pairnorm.errors import PairNormError

if TYPE_CHECKING:
    from pairnorm.classify.findings import Findings

EXAMPLE = (
    "Example: [bold]pairnorm fit --nodes customers.csv --edges payments.csv --id customer --label risk "
    "--out run[/]"
)


def fit(
    nodes: Nodes,
    label: Annotated[
        str | None,
        typer.Option(help="Column of nodes with classes; empty = unknown.", rich_help_panel="Columns"),
    ] = None,
    edges: Edges = None,
    out: Annotated[Path, typer.Option(help="Folder for predictions, model and report.")] = Path("run"),
    id: Id = None,
    split: Split = None,
    source: Source = None,
    target: Target = None,
    weight: Weight = None,
    categorical: Categorical = None,
    ignore: Ignore = None,
    delimiter: Delimiter = None,
    model: Annotated[
        str, typer.Option(help="SGC, GCN, GAT, or auto: SGC, with --budget also the others.")
    ] = "auto",
    depth: Annotated[
        str, typer.Option(help="Graph convolutions: a number, several as 2,8, or auto.")
    ] = "auto",
    norm: Annotated[str, typer.Option(help="PN, PN-SI, PN-SCS, none or auto.")] = "auto",
    scale: Annotated[str, typer.Option(help="PairNorm's s: a number, several as 1,10, or auto.")] = "auto",
    scaling: Annotated[
        str, typer.Option(help="Of features: rows (words, counts), columns (ages, incomes), none or auto.")
    ] = "auto",
    budget: Annotated[
        str | None, typer.Option(help="Try GCN and GAT too, for at most so long: 90s, 5m, 1h.")
    ] = None,
    seeds: Annotated[int, typer.Option(help="How many of each GCN or GAT are averaged.")] = 5,
    epochs: Annotated[int, typer.Option(help="Epochs of GCN and GAT.")] = 500,
    device: Device = "auto",
    seed: Annotated[int, typer.Option(help="Of the split and of the models.")] = 0,
) -> None:
    """Learn from the labelled nodes of your graph and label all, also those without features.

    Validation nodes choose model, depth and scale; the accuracy is that on test
    nodes, which no choice has seen. Where you give no split, one is drawn.
    """
    from pairnorm.classify import ClassifierWarning, NodeClassifier
    from pairnorm.classify.findings import STEPS, Findings
    from pairnorm.classify.summary import whole_folder

    began = time.monotonic()
    columns: dict[str, Any] = {
        "id": id, "label": label, "split": split, "source": source, "target": target, "weight": weight,
        "categorical": categorical, "ignore": ignore, "delimiter": delimiter,
    }  # fmt: skip
    classifier = NodeClassifier(
        model=_listed(model, str), depth=_listed(depth, int), norm=_listed(norm, str),
        scale=_listed(scale, float), scaling=scaling, budget=budget, seeds=seeds, epochs=epochs,
        device=device, random_state=seed,
    )  # fmt: skip
    with whole_folder(out) as folder:
        graph = read_graph(nodes, edges, columns)
        if label is None and not graph.num_classes:
            raise PairNormError(
                f"{nodes.name}: no node has a class. Name the column that holds them: --label …"
            )
        show_graph(graph)
        with typed(), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ClassifierWarning)
            with steps("Choosing a model") as tick:
                classifier.fit(graph, progress=lambda done, total, what: tick(what, total))
            with steps("Comparing with simpler methods", STEPS) as tick:
                findings = Findings.of(classifier, graph, tick)
        for warning in caught:  # held back until the bars are done
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
        notes = [str(warning.message) for warning in caught if warning.category is ClassifierWarning]
        _write(findings, folder, notes)
    _show(findings)
    console.print(f"\nWrote to {escape(str(out))}/ in {time.monotonic() - began:.0f} s:", soft_wrap=True)
    for name, what in _contents(out):
        console.print(f"  {name:<20} {what}", soft_wrap=True)
    console.print(
        f"\nNext: read [bold]{escape(str(out / 'report.md'))}[/]; label a graph that has changed with\n"
        f"[bold]pairnorm predict --model {escape(str(out))} --nodes … --edges … --out predictions.csv[/]",
        soft_wrap=True,
    )


def _listed(text: str, kind: type) -> Any:
    """Return ``'auto'``, or the values of a list such as ``'2,4'``; what is wrong with them is said later."""
    if text == "auto":
        return text
    values = []
    for part in text.split(","):
        try:
            values.append(kind(part.strip()))
        except ValueError:
            values.append(part.strip())
    return values


def _write(findings: "Findings", folder: Path, notes: list[str]) -> None:
    from pairnorm.classify.persistence import save
    from pairnorm.classify.summary import PREDICTIONS, has_parquet, predictions, write_report, write_table

    classifier = findings.classifier
    frame = predictions(findings.graph, findings.probabilities, classifier.classes_)
    for name in PREDICTIONS if has_parquet() else PREDICTIONS[:1]:
        write_table(frame, folder / name)
    save(classifier, folder)
    write_report(findings, folder, notes)


def _show(findings: "Findings") -> None:
    if findings.test.any():
        table = small_table("On held-out nodes", "nodes", "accuracy", "95% interval", "balanced", "macro F1")
        for name, scores in findings.groups().items():
            low, high = scores.interval
            numbers = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1)
            accuracy, balanced, f1 = (f"{100 * number:.1f}%" for number in numbers)
            table.add_row(
                name, f"{scores.count:,}", accuracy, f"{100 * low:.1f} to {100 * high:.1f}", balanced, f1
            )
        console.print(table)
    console.print(escape(findings.verdict().replace("**", "")), soft_wrap=True)


def _contents(out: Path) -> list[tuple[str, str]]:
    known = {
        "predictions.csv": "a row for every node: its class, and how probable each is",
        "predictions.parquet": "the same, for machines",
        "model.json": "with model.safetensors: the model",
        "report.md": "how far to trust it, with figures",
    }
    return [(name, what) for name, what in known.items() if (out / name).exists()]
