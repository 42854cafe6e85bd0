"""``pairnorm fit``: labels for all nodes of a user's graph, and a report on how far to trust them."""

import time
import warnings
from argparse import Namespace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError, one_of, whole_number
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    ENDS,
    FILES,
    SHARED,
    add_command,
    check_classes,
    columns_of,
    files_of,
    flag,
    option,
    read_graph,
    refuse,
    refuse_inputs,
)

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.findings import Findings

HEADINGS = ("On held-out nodes", "nodes", "accuracy", "95% interval", "balanced", "macro F1")
IN_MEMORY = ("class_weight", "directed", "scaling", "time", "budget", "checkpoint")
"""Options that only models in memory heed."""
CONTENTS = {
    "predictions.csv": "a row for every node: its class, and how probable each is",
    "predictions.parquet": "the same, for machines",
    "model.json": "with model.safetensors: the model",
    "report.html": "a page to read: which labels to trust, every node and why",
    "report.md": "the same in short, with figures",
}


def add(commands: Any) -> None:
    """Add the command and its options."""
    example = (
        "pairnorm fit --nodes customers.csv --edges payments.csv --id customer \\\n"
        "      --label risk --out run"
    )
    parser = add_command(commands, "fit --nodes FILE --edges FILE --label COLUMN", run, example)
    out = option("FOLDER", "Folder for predictions, model and report.", "run")
    nodes = SHARED["nodes"] | {"required": False}
    graph = option("FOLDER", "Graph that `pairnorm pack` wrote, instead of tables.")
    memory = option("SIZE", "With --graph: what may be taken, as 8GB. Default: what is free.")
    parser.either = ("nodes", "graph")
    parser.group("Files", *FILES, "spreadsheet-safe", nodes=nodes, graph=graph, memory=memory, out=out)
    parser.group("Columns", "id", "label", "classes", "split", *ENDS, "categorical", "ignore", "keep")
    parser.group(
        "Model",
        model=option(
            "NAMES",
            "SGC, label-propagation, logistic-regression, boosted-trees, GCN, GAT, GCNII, APPNP, several, or "
            "auto: all, the last four only with --budget.",
            "auto",
        ),
        depth=option("NUMBERS", "Graph convolutions: a number, several as 2,8, or auto.", "auto"),
        norm=option("NAMES", "PN, PN-SI, PN-SCS, none or auto.", "auto"),
        scale=option("NUMBERS", "PairNorm's s: a number, several as 1,10, or auto.", "auto"),
        fill=option("NAMES", "For missing features: zero, fp, mass, several, or auto.", "auto"),
        scaling=SHARED["scaling"],
        metric=option(
            "NAME",
            "Choose by loss, accuracy, balanced-accuracy, macro-f1, average-precision or auc. Default: loss; "
            "with --graph, accuracy.",
        ),
        directed=option("KIND", "yes tells in- from out-neighbors, no does not; auto.", "auto"),
        time=option("COLUMN", "Test on the latest by this column of numbers or dates, not at random."),
        simple=flag("One model, the best, instead of an average of several."),
        budget=option("TIME", "Try GCN, GAT, GCNII and APPNP too, for at most so long: 90s, 5m, 1h."),
        seeds=option("N", "How many of each of these are averaged.", 5),
        epochs=option("N", "Epochs of these.", 500),
        checkpoint=option("FOLDER", "Keep their training there, and go on from what is kept."),
        **{
            "class-weight": option("KIND", "balanced finds rare classes more often; auto.", "auto"),
            "no-refit": flag("Learn from training nodes only, also after the choice."),
        },
    )
    on = option("PLACE", "With --graph: here, or ray, where blocks of SGC's columns go to a cluster.", "here")
    parser.group("Running", "device", on=on, seed=option("N", "Of the split and of the models.", 0))


def run(options: Namespace) -> None:
    """Learn from the labeled nodes of your graph and label all.

    Also those without features. Validation nodes choose models, whose average
    labels; the accuracy is that on test nodes, which no choice has seen. Where you
    give no split, one is drawn, and after the choice all labels are learned from.
    """
    from pairnorm.nn.distributed import launched_ranks, ranks
    from pairnorm.train.schedule import PLACES

    names = set(options.model.split(","))
    one_of("on", options.on, PLACES)
    if options.graph is not None:
        tables = [name for name in ("nodes", "edges", "features", "database") if getattr(options, name)]
        if tables:
            problem = f"there are tables beside the packed graph (--{tables[0]})"
            raise PairNormError(problem, code="conflicting-options", hint="Pass {graph} alone.", graph=...)
        hint = "Leave it out; what is in which column is said to pairnorm pack."
        refuse(options, columns_of(options), "is about tables, and the graph is packed", hint)
        if names <= {"auto", "SGC"}:
            why = "is for models in memory, and a packed graph is read from disk"
            hint = "Leave it out; or, where the graph fits memory, name several models: {model}"
            refuse(options, IN_MEMORY, why, hint, model="SGC,label-propagation")
            if launched_ranks() > 1:
                problem = "an SGC over a packed graph is walked by columns, which ranks do not share"
                hint = "Leave torchrun out, and pass {on} for several machines."
                raise PairNormError(problem, code="conflicting-options", hint=hint, on="ray")
            _run_packed(options)
            return
    if options.on != "here":
        problem = f"{options.on!r} is for the columns of an SGC over a packed graph"
        hint = "Pass {graph} and {model}; for GCN and GAT, torchrun -m pairnorm fit …"
        raise PairNormError(problem, code="conflicting-options", hint=hint, graph=..., model="SGC")
    with ranks() as rank, console.silent(rank > 0), TemporaryDirectory() as elsewhere:
        if rank > 0:  # the first one writes
            options.out = Path(elsewhere) / "run"
        _run_in_memory(options, rank)


def _classifier(options: Namespace) -> "NodeClassifier":
    from pairnorm.classify import NodeClassifier

    return NodeClassifier(
        model=_listed(options.model, str),
        depth=_listed(options.depth, int),
        norm=_listed(options.norm, str),
        scale=_listed(options.scale, float),
        fill=_listed(options.fill, str),
        metric=options.metric or "loss",
        class_weight=options.class_weight,
        simple=options.simple,
        refit=not options.no_refit,
        directed=options.directed,
        time=options.time,
        scaling=options.scaling,
        budget=options.budget,
        checkpoints=options.checkpoint,
        seeds=options.seeds,
        epochs=options.epochs,
        device=options.device,
        random_state=whole_number("seed", options.seed, 0, 2**62),
    )


def _run_in_memory(options: Namespace, rank: int) -> None:
    from pairnorm.classify import ClassifierWarning
    from pairnorm.classify.findings import STEPS, Findings
    from pairnorm.data import Graph
    from pairnorm.report.fit_report import whole_folder

    began, out, step = time.monotonic(), options.out, count(1)
    classifier = _classifier(options)
    refuse_inputs(out, *files_of(options))
    with whole_folder(out) as folder:
        if options.graph is None:
            graph = read_graph(options).with_structure()
        else:
            graph = Graph.from_packed(Graph.open(options.graph))
        check_classes(graph, options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ClassifierWarning)
            with console.progress() as tell:
                choosing, comparing = "Choosing a model", "Comparing with simpler methods"
                tell(choosing, 0, None)
                classifier.fit(graph, progress=lambda done, total, what: tell(choosing, done, total, what))
                if rank > 0:  # all that ranks do together is done
                    return
                tell(comparing, 0, STEPS)
                findings = Findings.of(
                    classifier, graph, lambda what: tell(comparing, next(step), STEPS, what)
                )
        for warning in caught:  # held back until the bars are done
            warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
        notes = [str(warning.message) for warning in caught if warning.category is ClassifierWarning]
        _write(findings, folder, notes, options.spreadsheet_safe)
    _show(findings)
    console.show(f"\nWrote to {safe(out)}/ in {time.monotonic() - began:.0f} s:")
    for name, what in CONTENTS.items():
        if (out / name).exists():
            console.show(f"  {name:<20} {what}")
    page = next(out / name for name in ("report.html", "report.md") if (out / name).exists())
    console.show(
        f"\nNext: read [bold]{safe(page)}[/]; label a graph that has changed with\n"
        f"[bold]pairnorm predict --model {safe(out)} --nodes … --edges … --out predictions.csv[/]"
    )


def _run_packed(options: Namespace) -> None:
    """Fit a graph that is larger than memory; what a killed run had finished is taken up."""
    from pairnorm.base.files import reserved
    from pairnorm.base.memory import free_memory, parse_memory, size
    from pairnorm.classify import ClassifierWarning
    from pairnorm.classify.predictions import has_parquet
    from pairnorm.classify.streaming import Streaming
    from pairnorm.data import Graph
    from pairnorm.report.fit_report import whole_folder

    began, out, steps = time.monotonic(), options.out, count(1)
    chosen: dict[str, Any] = {
        "depths": _listed(options.depth, int),
        "norms": _listed(options.norm, str),
        "scales": _listed(options.scale, float),
        "fills": _listed(options.fill, str),
        "metric": options.metric or "auto",
    }
    graph = Graph.open(options.graph)
    console.show(f"[bold]Graph {safe(repr(graph.folder.name))}[/]")
    console.facts(graph.describe())
    work = out.absolute().with_name(f".{out.name}.walk")
    with reserved(work), whole_folder(out) as folder, warnings.catch_warnings():
        warnings.simplefilter("always", ClassifierWarning)
        search = Streaming(
            graph, work, free_memory() if options.memory is None else parse_memory(options.memory),
            **{name: value for name, value in chosen.items() if value != "auto"},
            spreads=options.model == "auto", seed=whole_number("seed", options.seed, 0, 2**62), on=options.on,
            tell=lambda what: tell("Walking", min(next(steps), search.steps), search.steps, what),
        )  # fmt: skip
        plan = search.plan
        console.show(
            f"\nMemory: at most {size(plan.peak(plan.width))} of {size(plan.memory)}, in blocks of "
            f"{plan.width} columns.\nNot tried: {safe('; '.join(search.left_out))}."
        )
        if search.cluster is not None:
            console.show(f"Blocks go to {search.cluster.cores} cores of a Ray cluster.")
        with console.progress() as tell:
            outcome = search.run()
        outcome.write(folder, has_parquet(), options.spreadsheet_safe)
        scores = outcome.scores
    low, high = scores.interval
    console.show(
        f"\n{safe(outcome.best.name)}: {scores.accuracy:.1%} on {scores.count:,} held-out nodes "
        f"(95% interval {low:.1%} to {high:.1%}).\n\n"
        f"Wrote to {safe(out)}/ in {time.monotonic() - began:.0f} s."
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


def _write(findings: "Findings", folder: Path, notes: list[str], spreadsheet_safe: bool) -> None:
    from pairnorm.classify.persistence import save
    from pairnorm.classify.predictions import PREDICTION_FILES, has_parquet, prediction_table, write_table
    from pairnorm.report.fit_report import write_report

    classifier = findings.classifier
    frame = prediction_table(findings.graph, classifier.probabilities_, classifier)
    for name in PREDICTION_FILES if has_parquet() else PREDICTION_FILES[:1]:
        write_table(frame, folder / name, spreadsheet_safe)
    save(classifier, folder)
    write_report(findings, folder, notes)


def _show(findings: "Findings") -> None:
    if findings.test.any():
        rows = []
        for name, scores in findings.groups().items():
            low, high = scores.interval
            numbers = (scores.accuracy, scores.balanced_accuracy, scores.macro_f1)
            accuracy, balanced, f1 = (f"{100 * number:.1f}%" for number in numbers)
            rows.append(
                (name, f"{scores.count:,}", accuracy, f"{100 * low:.1f} to {100 * high:.1f}", balanced, f1)
            )
        console.table(HEADINGS, rows)
    console.show(safe(findings.verdict().replace("**", "")))
