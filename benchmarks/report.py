"""Rows of the table, the machine they were measured on, and how both are printed and recorded."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from pairnorm.train.result import Origin

FOLDER = Path(__file__).parent
BEGIN, END = "<!-- results: written by python -m benchmarks --readme -->", "<!-- end of results -->"
COLUMNS = ("work", "ours", "peer", "result", "goal", "reached")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line: what was measured, and the figure that is held against a goal.

    Args:
        part: of the benchmarks.
        work: what was done.
        ours: what it cost us, with a unit.
        peer: what it cost the peer, where there is one.
        result: the figure, in ``unit``.
        unit: ``"x"``, ``"%"``, ``"s"``, ``"GiB"``, ...
        goal: what the figure should be, where that was set.
        at_least: whether more is better.
    """

    part: str
    work: str
    ours: str
    peer: str = ""
    result: float
    unit: str
    goal: float | None = None
    at_least: bool = True

    @property
    def cells(self) -> tuple[str, ...]:
        """The line as text, by column."""
        goal, reached = "", ""
        if self.goal is not None:
            goal = f"{'≥' if self.at_least else '≤'} {_figure(self.goal, self.unit)}"
            reached = "yes" if (self.result >= self.goal) == self.at_least else "no"
        return self.work, self.ours, self.peer, _figure(self.result, self.unit), goal, reached


def _figure(value: float, unit: str) -> str:
    number = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{number}{unit}" if unit in ("x", "%") else f"{number} {unit}"


def duration(seconds: float) -> str:
    """Write a time with three digits and a unit that suits it.

    >>> duration(0.00123), duration(98765.0)
    ('1.23 ms', '1.14 d')
    """
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size or unit == "µs":
            return f"{seconds / size:.3g} {unit}"
    raise AssertionError


def machine(device: torch.device | str) -> dict[str, Any]:
    """Say what was measured where: device, cores, versions, commit, date."""
    origin = asdict(Origin.here(seconds=0, shared_by=1, device=device))
    kept = ("device", "pairnorm_version", "torch_version", "python_version", "git_commit", "finished")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    import torch_geometric

    return {name: origin[name] for name in kept} | {
        "system": f"{platform.system()} {platform.machine()}",
        "cores": cores,
        "pyg_version": torch_geometric.__version__,
    }


def text_table(rows: Sequence[Row]) -> str:
    """Set the rows in columns for a terminal."""
    lines = [COLUMNS, *(row.cells for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def markdown_table(rows: Sequence[Row]) -> str:
    """Set the rows in a Markdown table."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row.cells for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(path: Path, rows: Sequence[Row], where: dict[str, Any]) -> None:
    """Write rows and machine as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    result = {"machine": where, "rows": [asdict(row) for row in rows]}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


def write_readme(folder: Path = FOLDER) -> None:
    """Put the tables of all recorded results into the README, between its marks."""
    sections = []
    for path in sorted((folder / "results").glob("*.json")):
        result = json.loads(path.read_text())
        if "rows" not in result:  # the figures of ``benchmarks.large``, whose tables are in docs/large.md
            continue
        where, rows = result["machine"], [Row(**row) for row in result["rows"]]
        sections.append(
            f"### {where['device']}\n\n{where['cores']} cores, {where['system']}, Python "
            f"{where['python_version']}, torch {where['torch_version']}, PyG {where['pyg_version']}, "
            f"commit {where['git_commit']}, {where['finished']}.\n\n{markdown_table(rows)}\n"
        )
    readme = folder / "README.md"
    text = readme.read_text()
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    readme.write_text("\n".join([before + BEGIN, "", *sections, END]) + after)
