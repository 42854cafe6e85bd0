"""Tables of selected candidates next to reported numbers, for the terminal, as CSV, Markdown and LaTeX."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import NamedTuple

from pairnorm.base.files import csv_text
from pairnorm.data import datasets
from pairnorm.sweep.grid import Experiment, TableCell
from pairnorm.sweep.index import Chosen, ResultIndex

TITLES = {dataset.name: dataset.title for dataset in datasets()}
NOT_RUN = "not run"
IDLE_SKIP = "† too shallow for the skip connection: the same model as without it"
PARTIAL = "* not all candidates of this cell have been trained yet"
COLUMNS = (
    "dataset", "method", "missing_percent", "accuracy", "layers", "accuracy_std", "paper_accuracy",
    "paper_layers",
)  # fmt: skip


class Reported(NamedTuple):
    """A number of the paper: mean test accuracy over 5 runs, and the number of layers."""

    accuracy: float
    layers: int


@dataclass(frozen=True)
class Entry:
    """A cell of a table: our selected candidate and the number of the paper, None where there is none."""

    cell: TableCell
    ours: Chosen | None
    paper: Reported | None
    has_idle_skip: bool = False

    @property
    def difference(self) -> float | None:
        """Our accuracy minus the paper's."""
        return None if self.ours is None or self.paper is None else self.ours.accuracy - self.paper.accuracy


@dataclass(frozen=True)
class Table:
    """A table of results, whose entries are ordered by graph and method."""

    name: str
    title: str
    entries: tuple[Entry, ...]

    @classmethod
    def of(
        cls,
        index: ResultIndex,
        *experiments: Experiment,
        reported: Mapping[TableCell, Reported] | None = None,
    ) -> "Table":
        """Make a table of experiments with the same columns; the last experiment gives name and title."""
        entries, order = list[Entry](), list(TITLES)
        for experiment, cell in ((grid, cell) for grid in experiments for cell in grid.cells()):
            ours = index.chosen(experiment, cell)
            paper = (reported or {}).get(cell) if experiment.in_tables else None
            skip = experiment.methods[cell.method].get("skip", 0)
            idle = ours is not None and skip > max(ours.layers - 2, 0)
            entries.append(Entry(cell, ours, paper, idle))
        entries.sort(key=lambda entry: order.index(entry.cell.dataset))
        return cls(experiments[-1].name, experiments[-1].title, tuple(entries))

    @property
    def percents(self) -> list[int]:
        """The missing percentages, rising."""
        return sorted({entry.cell.missing_percent for entry in self.entries})

    @property
    def filled(self) -> int:
        """The number of entries with a result of our own runs."""
        return sum(entry.ours is not None for entry in self.entries)

    @property
    def against_paper(self) -> bool:
        """Whether the paper reports any of its cells."""
        return any(entry.paper for entry in self.entries)

    @property
    def partial(self) -> bool:
        """Whether a number of ours was selected before all candidates were trained."""
        return any(entry.ours is not None and not entry.ours.complete for entry in self.entries)


def _is_best(table: Table, entry: Entry) -> bool:
    """Return whether no method has a higher accuracy on this graph at this missing rate, as shown."""
    same = (other.ours for other in table.entries if other.cell[::2] == entry.cell[::2])
    top = max((round(ours.accuracy, 3) for ours in same if ours), default=0.0)
    return entry.ours is not None and round(entry.ours.accuracy, 3) == top


def as_csv(table: Table, settings: Sequence[str] = ()) -> str:
    """Return the table as CSV, empty where nothing was run; ``settings`` of the chosen specs are columns."""
    rows = []
    for entry in table.entries:
        numbers: list[object] = [""] * (3 + len(settings))
        if (ours := entry.ours) is not None:
            std = "" if isnan(ours.accuracy_std) else f"{ours.accuracy_std:.4f}"
            numbers = [f"{ours.accuracy:.4f}", ours.layers, std]
            numbers += [getattr(ours.best.spec, name) for name in settings]
        rows.append([*entry.cell, *numbers[:3], *(entry.paper or ("", "")), *numbers[3:]])
    return csv_text([*COLUMNS, *settings], rows)


def by_missing_rate(table: Table) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows in Markdown: a column per missing rate, the paper's numbers below ours."""
    by_row: dict[tuple[str, str], dict[int, Entry]] = {}
    for entry in table.entries:
        by_row.setdefault(entry.cell[:2], {})[entry.cell.missing_percent] = entry
    rows, previous = list[list[str]](), ""
    for (dataset, method), entries in by_row.items():
        cells = [entries.get(percent) for percent in table.percents]
        shown = (_show_ours(table, cell) for cell in cells)
        rows.append([TITLES[dataset] if dataset != previous else "", method, *shown])
        if any(cell is not None and cell.paper for cell in cells):
            rows.append(["", "paper", *map(_show_paper, cells)])
        previous = dataset
    return ["Graph", "Method", *(f"{percent}% missing" for percent in table.percents)], rows


def legend(table: Table) -> str:
    """Explain the cells of a table."""
    text = "Ours: mean test accuracy ± standard deviation over the runs, @ layers chosen by validation."
    if table.against_paper:
        text += " Below: the paper's, and ours minus the paper's."
    notes = f" {IDLE_SKIP}." if any(entry.has_idle_skip for entry in table.entries) else ""
    return f"{text} Bold: the best of ours on a graph.{notes}" + (f" {PARTIAL}." if table.partial else "")


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int | None = None) -> str:
    """Return a table of texts as Markdown; columns after the first ``left`` are aligned to the right."""
    rule = "".join("---|" if left is None or column < left else "---:|" for column in range(len(headings)))
    lines = [f"| {' | '.join(row)} |" for row in (headings, *rows)]
    return "\n".join([lines[0], f"|{rule}", *lines[1:]])


def latex(table: Table) -> str:
    """Return the table as LaTeX (booktabs)."""
    headings, rows = by_missing_rate(table)
    first, *others = [f"{' & '.join(map(_in_latex, row))} \\\\" for row in (headings, *rows)]
    begin = rf"\begin{{tabular}}{{ll{'r' * len(table.percents)}}}"
    return "\n".join([begin, r"\toprule", first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}", ""])


def _in_latex(text: str) -> str:
    text = re.sub(r"\*\*(.*)\*\*", r"\\textbf{\1}", text).replace("%", r"\%").replace("±", r"$\pm$")
    return re.sub(r"([+-]\d[\d.]*)", r"$\1$", text.replace("†", r"$^\dagger$"))


def terminal(table: Table) -> str:
    """Return the table for the terminal, one line per cell."""
    width = max(len(entry.cell.method) for entry in table.entries)
    paper = "Paper, difference" * table.against_paper
    lines = [table.title, "", f"{'':<{width + 21}}{'Ours @ layers':<22}{paper}".rstrip()]
    for entry in table.entries:
        dataset, method, percent = entry.cell
        ours = _show_ours(table, entry).replace("**", "")
        line = f"{TITLES[dataset]:<11}  {method:<{width}}  {percent:>3}%  {ours:<20}  {_show_paper(entry)}"
        lines.append(line.rstrip())
    return "\n".join([*lines, *([PARTIAL] if table.partial else [])]) + "\n"


def show_mean(mean: float, deviation: float) -> str:
    """Format a mean with its standard deviation, which is NaN for a single run.

    >>> show_mean(0.75, 0.0125)
    '0.750 ± 0.013'
    """
    return f"{mean:.3f}" + ("" if isnan(deviation) else f" ± {deviation:.3f}")


def _show_ours(table: Table, entry: Entry | None) -> str:
    if entry is None or entry.ours is None:
        return NOT_RUN if entry else ""
    ours = entry.ours
    value = f"{show_mean(ours.accuracy, ours.accuracy_std)}{'' if ours.complete else '*'}"
    value = f"**{value}**" if _is_best(table, entry) else value
    return f"{value} @ {ours.layers}{'†' if entry.has_idle_skip else ''}"


def _show_paper(entry: Entry | None) -> str:
    if entry is None or entry.paper is None:
        return ""
    difference = "" if entry.difference is None else f", {entry.difference:+.3f}"
    return f"{entry.paper.accuracy:.3f} @ {entry.paper.layers}{difference}"
