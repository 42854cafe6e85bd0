"""``pairnorm fit``: label all nodes of a user's graph, and report how far to trust the labels."""

import time
import warnings
from collections import Counter
from functools import partial
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from pairnorm.base.errors import PairNormError, one_of, whole_number
from pairnorm.base.memory import parse_memory, size
from pairnorm.commands import console
from pairnorm.commands.console import safe
from pairnorm.commands.options import (
    COLUMNS,
    FILES,
    TABLE_ARGUMENTS,
    Options,
    Result,
    command,
    interval,
    refuse_inputs,
    shared,
)

if TYPE_CHECKING:
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.evaluation import Scores
    from pairnorm.classify.findings import Findings
    from pairnorm.classify.search import FitProgress

IN_MEMORY = (
    *("class_weight", "directed", "feature_scaling", "time_column", "checkpoint", "seeds", "epochs"),
    *("no_refit", "no_baselines", "simple"),
)
"""Options that apply only to models in memory."""
SEEDS, EPOCHS = 5, 500
CONTENTS = {
    "predictions.csv": "one row per node: its class and the probability of each class",
    "predictions.parquet": "the same as Parquet",
    "model.json": "with model.safetensors: the model",
    "report.html": "a page to read: which labels to trust, every node and why",
    "report.md": "the same in short, with figures",
}
OPTIONS = {
    "Files": {
        **FILES,
        **shared("spreadsheet-safe"),
        "--graph FOLDER": "Read a graph that `pairnorm pack` wrote, instead of tables.",
        "--memory SIZE": "Use at most this memory to read tables or a --graph, such as 8GB. Default: half "
        "of what is free; with --graph, all of it.",
        "--out FOLDER=run": "Write predictions, model and report to this folder.",
    },
    "Columns": COLUMNS,
    "Model": {
        **shared("feature-scaling"),
        "--model NAMES=auto": "Try these models: SGC, label-propagation, logistic-regression, "
        "boosted-trees, residual-GCN, hop-network, GCN, GAT, GCNII, APPNP, or auto: all, the last four only "
        "with --time-limit.",
        "--depth NUMBERS=auto": "Try these numbers of layers, such as 2,8, or auto.",
        "--norm NAMES=auto": "Try these norms: PN, PN-SI, PN-SCS, none or auto.",
        "--scale NUMBERS=auto": "Try these values of PairNorm's s, such as 1,10, or auto.",
        "--impute NAMES=auto": "Impute missing features by zero, fp, known_neighbor_mean, several, or auto.",
        "--metric NAME": "Select models by loss, accuracy, balanced-accuracy, macro-f1, average-precision "
        "or auc. Default: loss; with --graph, accuracy.",
        "--time-column COLUMN": "Test on the latest nodes by this column. Default: at random.",
        "--time-limit TIME": "Search this long (90s, 5m, 1h; 0: try everything), and try GCN, GAT, GCNII "
        "and APPNP too. Default: 60s up to 20,000 nodes, more for larger graphs, without these models.",
        "--directed KIND=auto": "Distinguish in- from out-neighbors: yes, no or auto.",
        "--class-weight KIND=auto": "Weight classes: balanced finds rare ones more often.",
        "--simple": "Use the single best model. Default: an ensemble of the best.",
        "--seeds N": f"Average N networks of each setting. Default: {SEEDS}.",
        "--epochs N": f"Train networks for N epochs. Default: {EPOCHS}.",
        "--checkpoint FOLDER": "Save the training of networks here, and resume from it. Default: not saved.",
        "--no-refit": "Train on training nodes only. Default: refit on all labels in the end.",
        "--no-baselines": "Skip the comparison with baselines. Default: compare.",
    },
    "Running": {
        **shared("device quiet json"),
        "--backend NAME=here": "Compute --graph here, or on ray: the cluster at $RAY_ADDRESS.",
        "--seed N=0": "Set the seed of the split and of the models.",
    },
}


@command(
    "fit --nodes TABLE --edges TABLE --label COLUMN",
    "pairnorm fit --nodes customers.csv --edges payments.csv --id customer \\\n      --label risk --out run",
    options=OPTIONS,
    essential="nodes edges features id label split time-column model metric time-limit device out",
    required=("nodes|graph",),
)
def run(options: Options) -> Result:
    """Label all nodes of your graph, also those without features.

    Learns from the labeled nodes, selects models on validation nodes and averages
    the best. The reported accuracy is that on test nodes, which played no part in
    the selection. Without a split of yours, one is drawn at random.
    """
    from pairnorm.train.distributed import ranks
    from pairnorm.train.schedule import BACKENDS

    one_of("backend", options.backend, BACKENDS)
    classifier = _classifier(options)
    if options.graph is not None:
        about_tables = [name for name in vars(options) if name in {"nodes", "edges", *TABLE_ARGUMENTS}]
        hint = "Leave it out; tables and columns are named when the graph is packed."
        options.refuse(about_tables, "is about tables, and the graph is packed", hint)
        if classifier.model in ("auto", ["SGC"]):
            return _fit_in_blocks(options, classifier)
        why = "limits blocks of columns, and these models read the whole graph"
        options.refuse(["memory"], why, "Leave it out, or pass {model}.", model="SGC")
    if options.backend != "here":
        problem = f"{options.backend!r} propagates the columns of an SGC over a packed graph"
        hint = "Pass {graph} and {model}; for GCN and GAT, torchrun -m pairnorm fit …"
        raise PairNormError(problem, code="conflicting-options", hint=hint, graph=..., model="SGC")
    with ranks() as rank, console.silent(rank > 0), TemporaryDirectory() as elsewhere:
        if rank > 0:  # only the first rank writes to --out
            options.out = Path(elsewhere) / "run"
        return _fit_in_memory(options, classifier, rank)


def _classifier(options: Options) -> "NodeClassifier":
    """Return the classifier that the options describe, its parameters validated."""
    from pairnorm.classify import NodeClassifier
    from pairnorm.classify.search_space import IMPUTATION_CHOICES, MODELS
    from pairnorm.train.engine import find_device
    from pairnorm.train.spec import NORMS

    classifier = NodeClassifier(
        model=options.names("model", MODELS, is_open=True) or "auto",
        depth=options.numbers("depth") or "auto",
        norm=options.names("norm", NORMS) or "auto",
        scale=options.numbers("scale", float) or "auto",
        impute=options.names("impute", IMPUTATION_CHOICES) or "auto",
        metric=options.metric or "loss",
        class_weight=options.class_weight,
        simple=options.simple,
        refit=not options.no_refit,
        directed=options.directed,
        time=options.time_column,
        scaling=options.feature_scaling,
        time_limit=options.time_limit,
        checkpoints=options.checkpoint,
        seeds=SEEDS if options.seeds is None else options.seeds,
        epochs=EPOCHS if options.epochs is None else options.epochs,
        device=options.device,
        random_state=whole_number("seed", options.seed, 0, 2**62),
    )
    classifier.check_parameters()
    if "mass" in classifier.impute:
        console.note("mass is now called known_neighbor_mean; the old name will go in the next release.")
    one_of("feature-scaling", options.feature_scaling, ("auto", "rows", "columns", "none"))
    find_device(options.device)
    return classifier


def _fit_in_memory(options: Options, classifier: "NodeClassifier", rank: int) -> Result:
    from pairnorm.classify import ClassifierWarning
    from pairnorm.classify.findings import STEPS, Findings
    from pairnorm.classify.persistence import REPORT_FILES, result_folder
    from pairnorm.classify.search_space import resolve_time_limit
    from pairnorm.data import Graph
    from pairnorm.report.fit_report import fit_page, write_document

    out = options.out
    refuse_inputs(out, *options.files)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ClassifierWarning)
        with result_folder(out) as folder:  # the model is safe before it is compared with others
            if options.graph is None:
                graph = options.read_graph().with_structure()
            else:
                graph = Graph.from_packed(Graph.open(options.graph))
            options.check_classes(graph)
            limit = resolve_time_limit(options.time_limit, graph.num_nodes)
            text = "none, every candidate is evaluated" if limit == inf else f"{limit:.0f} s"
            console.show(f"\nTime limit: {text} (--time-limit).")
            with console.progress() as on_progress:
                on_progress(console.Progress("Selecting a model", 0, None))
                classifier.fit(graph, progress=partial(_show_progress, on_progress))
            if rank > 0:  # all that ranks do together is done
                return None
            _write_model(classifier, folder, options.spreadsheet_safe)
        try:
            stage = "Evaluating" if options.no_baselines else "Comparing with baselines"
            with console.stage(stage, STEPS, is_even=False) as advance:
                findings = Findings.of(classifier, graph, advance, compare=not options.no_baselines)
        except KeyboardInterrupt:
            console.show(f"\nStopped. The labels and the model are in {safe(out)}/, without a report.")
            raise console.Stopped from None
    for warning in caught:  # after the progress bars
        warnings.showwarning(warning.message, warning.category, warning.filename, warning.lineno)
    notes = [str(warning.message) for warning in caught if warning.category is ClassifierWarning]
    with result_folder(out, REPORT_FILES) as folder:
        write_document(fit_page(findings, notes), folder)
    _show(findings)
    console.show(f"\nWrote to {safe(out)}/ in {time.monotonic() - options.started:.0f} s:")
    written = [name for name in CONTENTS if (out / name).exists()]
    for name in written:
        console.show(f"  {name:<20} {CONTENTS[name]}")
    page = next(name for name in written if name.startswith("report"))
    console.show(
        f"\nNext: read [bold]{safe(out / page)}[/]; label a graph that has changed with\n"
        f"[bold]pairnorm predict --run {safe(out)} --nodes … --edges … --out predictions.csv[/]"
    )
    predicted = classifier.classes_.astype(str)[classifier.decide(classifier.probabilities_)]
    return _summary(out, classifier.best_.name, classifier.held_out_) | {
        "metric": findings.metric,
        "metric_value": _number(findings.best_scores.value(findings.metric)),
        "metric_interval": [*map(_number, findings.best_scores.interval_of(findings.metric))],
        "nodes": graph.num_nodes,
        "labeled": int(graph.labeled.sum()),
        "predicted": dict(Counter(predicted.tolist())),
        "notes": [*graph.notes, *notes],
    }


def _write_model(classifier: "NodeClassifier", folder: Path, spreadsheet_safe: bool) -> None:
    from pairnorm.classify.persistence import save, verify
    from pairnorm.classify.predictions import PREDICTION_FILES, has_parquet, prediction_table, write_table

    frame = prediction_table(classifier.graph_, classifier.probabilities_, classifier)
    for name in PREDICTION_FILES if has_parquet() else PREDICTION_FILES[:1]:
        write_table(frame, folder / name, spreadsheet_safe)
    save(classifier, folder)
    verify(classifier, folder)


def _show(findings: "Findings") -> None:
    from pairnorm.classify.findings import verdict
    from pairnorm.report.fit_report import accuracy_table

    if findings.test.any():
        metrics = [*dict.fromkeys([findings.metric, "accuracy", "balanced-accuracy"])][:2]
        groups = accuracy_table(findings.groups(), metrics, "On held-out nodes")
        console.table(groups.headings, groups.rows)
        share = findings.test_scores.most_frequent_share
        console.show(f"{share:.1%} of the held-out nodes have the most frequent class.")
    console.show(safe(verdict(findings).replace("**", "")))


def _show_progress(on_progress: console.OnProgress, now: "FitProgress") -> None:
    best = f", best so far {now.best_score:.1%}" if now.best_score == now.best_score else ""
    latest = f"{now.step}{best}"
    seconds = now.seconds_left
    on_progress(console.Progress("Selecting a model", now.done, now.total, latest, seconds_left=seconds))


def _number(value: float) -> float | None:
    return None if value != value else value  # JSON has no NaN


def _summary(out: Path, model: str, scores: "Scores | None") -> dict[str, Any]:
    """Return the summary of a run that ``--json`` prints."""
    known = scores if scores is not None and scores.count > 0 else None
    return {
        "model": model,
        "accuracy": known and known.accuracy,
        "accuracy_interval": known and list(known.interval),
        "most_frequent_share": known and known.most_frequent_share,
        "held_out": known.count if known else 0,
        "files": sorted(str(path) for path in out.iterdir() if not path.name.startswith(".")),
    }


def _fit_in_blocks(options: Options, classifier: "NodeClassifier") -> Result:
    """Fit a graph that is larger than memory; finished parts of a killed run are used again."""
    from pairnorm.base.files import reserved
    from pairnorm.classify import ClassifierWarning
    from pairnorm.classify.persistence import result_folder
    from pairnorm.classify.predictions import has_parquet
    from pairnorm.classify.streaming import DRAFTS, Streaming
    from pairnorm.data import Graph
    from pairnorm.report.fit_report import streamed_page, write_document
    from pairnorm.train.distributed import launched_ranks
    from pairnorm.train.engine import find_device

    hint = "Leave it out; or, where the graph fits in memory, name several models: {model}"
    why = "is for models in memory, and a packed graph is read from disk"
    options.refuse(IN_MEMORY, why, hint, model="SGC,label-propagation")
    if options.device.startswith("cuda") and options.backend != "here":
        problem = "--device cuda is for this machine, and blocks go to a cluster"
        raise PairNormError(problem, code="conflicting-options", hint="Leave out one of them.")
    if launched_ranks() > 1:
        problem = "a packed graph is propagated in blocks of columns, which ranks cannot share"
        hint = "Leave out torchrun, and pass {on} for several machines."
        raise PairNormError(problem, code="conflicting-options", hint=hint, on="ray")
    out = options.out
    names = {"depth": "depths", "norm": "norms", "scale": "scales", "impute": "imputations"}
    chosen = {argument: getattr(classifier, name) for name, argument in names.items()}
    graph = Graph.open(options.graph)
    console.show(f"[bold]Graph {safe(repr(graph.folder.name))}[/]")
    console.facts(graph.describe())
    work = out.absolute().with_name(f".{out.name}.work")
    with reserved(work, *DRAFTS), result_folder(out) as folder, warnings.catch_warnings():
        warnings.simplefilter("always", ClassifierWarning)
        search = Streaming(
            graph,
            work,
            None if options.memory is None else parse_memory(options.memory),
            **{name: value for name, value in chosen.items() if value != "auto"},
            metric=options.metric or "accuracy",
            label_propagation=options.model == "auto",
            seed=options.seed,
            time_limit=0 if options.time_limit is None else options.time_limit,
            # "auto" is the CPU: the adjacency may not fit on a GPU.
            device=str(find_device("cpu" if options.device == "auto" else options.device)),
            backend=options.backend,
            on_progress=lambda what: advance(what),
        )
        plan = search.plan
        console.show(
            f"\nMemory: at most {size(plan.peak(plan.width))} of {size(plan.memory)}, in blocks of "
            f"{plan.width} columns.\nNot tried: {safe('; '.join(search.left_out))}."
        )
        if search.cluster is not None:
            console.show(f"Blocks are computed on {search.cluster.cores} cores of a Ray cluster.")
        with console.stage("Propagating", search.steps) as advance:
            outcome = search.run()
        outcome.write(folder, has_parquet(), options.spreadsheet_safe)
        write_document(streamed_page(outcome), folder)
    if outcome.caveat:
        console.note(outcome.caveat)
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in search.seconds.items())
    name, scores = outcome.best.name, outcome.scores
    console.show(
        f"\nTime: {stages}.\n"
        f"{safe(name)}: {scores.accuracy:.1%} on {scores.count:,} held-out nodes {interval(scores)}; "
        f"{scores.most_frequent_share:.1%} of them have the most frequent class.\n\n"
        f"Wrote to {safe(out)}/ in {time.monotonic() - options.started:.0f} s."
    )
    return _summary(out, name, scores) | {"nodes": graph.facts.nodes}
