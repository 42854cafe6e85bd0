"""What each experiment leaves on disk: tables as CSV and LaTeX, figures as PNG and PDF."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from pairnorm.paper import distances, figures
from pairnorm.paper.experiment import Experiment
from pairnorm.paper.grids import EXPERIMENTS, TABLE1, TUNED
from pairnorm.paper.illustration import figure2
from pairnorm.paper.layers import Layers
from pairnorm.paper.results import Results
from pairnorm.paper.selection import Selection
from pairnorm.paper.style import save
from pairnorm.paper.tables import TITLES, Table, csv_text, latex
from pairnorm.train import Spec
from pairnorm.writing import whole_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURES = "figures"
MODELS = {"table1": "SGC", "table2": "GCN", "table3": "GAT"}
TUNED_SETTINGS = ("scale", "learning_rate", "weight_decay", "dropout")


@dataclass
class Outputs:
    """What has been written: tables by name, captions of figures by file name, and all files."""

    out: Path
    tables: dict[str, Table] = field(default_factory=dict)
    captions: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)

    def add_table(self, table: Table, settings: Sequence[str] = ()) -> None:
        """Write a table, if any place of it has been run."""
        if not table.filled:
            return
        self.tables[table.name] = table
        self.write(f"{table.name}.csv", csv_text(table, settings))
        self.write(f"{table.name}.tex", latex(table))

    def add_figure(self, name: str, caption: str, figure: "Figure | None") -> None:
        """Write a figure, if there is one."""
        if figure is not None:
            self.captions[name] = caption
            self.files += save(figure, self.out / FIGURES, name)

    def write(self, name: str, text: str) -> Path:
        """Write a text file."""
        path = self.out / name
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
        self.files.append(path)
        return path


def write_outputs(
    what: Iterable[str], results: Results, layers: dict[Spec, Layers], selection: Selection, out: Path
) -> Outputs:
    """Write what belongs to the named experiments and has been run.

    Args:
        what: names as on the command line, without ``all``.
        results: of the store.
        layers: of the case study.
        selection: how much of the experiments is wanted.
        out: the folder.
    """
    outputs, names = Outputs(out), list(what)
    for name in names:
        if name == "figure2":
            outputs.add_figure(name, "Figure 2. The two steps of PairNorm, on papers of Cora.", figure2())
        elif (experiment := selection.narrow(EXPERIMENTS[name])) is not None:
            if name == "case-study":
                _case_study(outputs, layers, experiment)
            else:
                _WRITE.get(name, _table)(outputs, results, experiment, selection)
                if name in MODELS and "figure4" not in names:
                    _depth_figures(outputs, results, experiment, MODELS[name])
    return outputs


def _table(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    outputs.add_table(Table.of(results, experiment))


def _depth_figures(outputs: Outputs, results: Results, experiment: Experiment, model: str) -> None:
    """Draw what a table chooses from: its model's panel of Figure 4."""
    for dataset in experiment.datasets if 100 in experiment.missing else ():
        figure = figures.against_depth(results, experiment, dataset, (model,), 100, mark_best=True)
        caption = f"{model} on {TITLES[dataset]} with all vectors outside the training set missing."
        outputs.add_figure(f"depth-{model.lower()}-{dataset}", caption, figure)


def _tuned(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    untuned = selection.narrow(TABLE1)
    both = (experiment,) if untuned is None else (untuned, experiment)
    if Table.of(results, experiment).filled:
        outputs.add_table(Table.of(results, *both, name=TUNED.name, title=TUNED.title), TUNED_SETTINGS)


def _figure1(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    for dataset in experiment.datasets:
        caption = (
            f"Figure 1{_twin(dataset)}. SGC on {TITLES[dataset]} without PairNorm (dashed) and with it "
            "(solid), split 3 / 10 / 87%."
        )
        outputs.add_figure(f"figure1-{dataset}", caption, figures.figure1(results, experiment, dataset))


def _figure3(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    for dataset in experiment.datasets:
        figure = figures.against_depth(results, experiment, dataset, ("GCN", "GAT"), 0)
        caption = (
            f"Figure 3{_twin(dataset)}. GCN and GAT on {TITLES[dataset]} without PairNorm-SI (dashed) and "
            "with it (solid)."
        )
        outputs.add_figure(f"figure3-{dataset}", caption, figure)


def _figure4(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    for dataset in experiment.datasets:
        models = ("SGC", "GCN", "GAT")
        figure = figures.against_depth(results, experiment, dataset, models, 100, mark_best=True)
        caption = (
            f"Figure 4{_twin(dataset)}. {TITLES[dataset]} with all vectors outside the training set missing, "
            "without PairNorm (dashed) and with it (solid); diamonds mark the depths that validation chooses."
        )
        outputs.add_figure(f"figure4-{dataset}", caption, figure)


def _bars(outputs: Outputs, results: Results, experiment: Experiment, selection: Selection) -> None:
    outputs.add_table(Table.of(results, experiment))
    for model in ("GCN", "GAT"):
        caption = (
            f"{model} with skip connections (t1, t2) and PairNorm-SI (PN) by missing rate: test accuracy and "
            "chosen depth. 70, 80 and 90%: fewer runs, as in the paper."
        )
        outputs.add_figure(f"bars-{model.lower()}", caption, figures.bars(results, experiment, model))


def _case_study(outputs: Outputs, layers: dict[Spec, Layers], experiment: Experiment) -> None:
    for model in ("SGC", "GCN"):
        found = distances.studied(layers, experiment, model)
        name = f"case-study-{model.lower()}"
        what = "SGC" if model == "SGC" else "a trained 12-layer GCN (without its last layer, the logits)"
        outputs.add_figure(
            name, f"Distances of node pairs by layer in {what}.", distances.mean_distances(found, model)
        )
        outputs.add_figure(
            f"{name}-distributions",
            f"Distributions of these distances, {model}.",
            distances.distributions(found, model),
        )


def _twin(dataset: str) -> str:
    return "" if dataset == "cora" else ", appendix"


_WRITE: dict[str, Callable[[Outputs, Results, Experiment, Selection], None]] = {
    "tuned": _tuned,
    "figure1": _figure1,
    "figure3": _figure3,
    "figure4": _figure4,
    "bars": _bars,
}
