"""How all figures look and are written: for print, for colour-blind readers, with the same bytes always."""

import os
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from subprocess import DEVNULL, PIPE, Popen
from typing import TYPE_CHECKING, Literal, Self

from pairnorm.writing import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Okabe & Ito: told apart by colour-blind readers, and dark enough on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GREY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#555555"
)  # fmt: skip
PARTS = {"train": BLUE, "validation": PURPLE, "test": VERMILLION}
MARKERS = {"train": "s", "validation": "^", "test": "o"}
PLAIN: Literal["dashed"] = "dashed"
NORMALISED: Literal["solid"] = "solid"
NORMS = {"none": VERMILLION, "PN": BLUE, "PN-SI": GREEN, "PN-SCS": PURPLE}
DOTS_PER_INCH = 200
Save = Callable[["Figure", Path, str], list[Path]]
"""Writes a figure, of some name, to a folder; returns the files."""

_SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine has it
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.labelsize": 10,
    "legend.fontsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.7,
    "lines.markersize": 4,
    "lines.dashed_pattern": (3.2, 1.6),
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "hatch.linewidth": 0.8,
}


@contextmanager
def style() -> Iterator[None]:
    """Draw in the style of this package, whatever the user has set."""
    import matplotlib
    import matplotlib.style

    with matplotlib.rc_context(), matplotlib.style.context(["default", _SETTINGS]):  # type: ignore[list-item]
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches, that makes room for what is drawn outside its axes."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def whole_ticks(axis: "Axes") -> None:
    """Put whole numbers along the x axis, which starts at 0."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axis.set_xlim(left=0)


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.pdf``. The same figure gives the same bytes: no dates, no versions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf

    paths = _paths(folder, name)
    # The canvases themselves: figure.savefig draws everything twice, the first time for nothing.
    with style():
        figure.set_dpi(DOTS_PER_INCH)
        with whole_file(paths[0]) as draft:
            FigureCanvasAgg(figure).print_png(draft, metadata={"Software": None})  # type: ignore[no-untyped-call]
        figure.set_layout_engine("none")  # everything has its place by now, and to find it takes long
        with whole_file(paths[1]) as draft:
            nameless = {"CreationDate": None, "Creator": None, "Producer": None}
            FigureCanvasPdf(figure).print_pdf(draft, metadata=nameless)  # type: ignore[no-untyped-call]
    return paths


def _paths(folder: Path, name: str) -> list[Path]:
    return [folder / f"{name}.png", folder / f"{name}.pdf"]


SAVED = b"saved\n"


class Saving:
    """Saves figures in processes of their own while this one goes on; what these cannot, it saves in the end.

    To draw is most of what a report takes, and matplotlib draws on one core. The processes are no workers of
    ``multiprocessing``: these run the script that was started once more, where it does not guard against it.

    Args:
        processes: how many; 0 to save every figure at once.
    """

    def __init__(self, processes: int) -> None:
        command = [sys.executable, "-P", "-c", "from pairnorm.plotting import serve; serve()"]
        paths = os.pathsep.join(filter(None, sys.path))
        self._helpers: list[Popen[bytes]] = []
        environment = {**os.environ, "PYTHONPATH": paths}
        with suppress(OSError):  # where no process may be started, all are saved here
            for _ in range(processes if sys.executable else 0):
                self._helpers.append(Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, env=environment))
        self._idle: SimpleQueue[Popen[bytes]] = SimpleQueue()
        for helper in self._helpers:
            self._idle.put(helper)
        self._threads = ThreadPoolExecutor(max(1, processes))
        self._jobs: list[tuple[Figure, Path, str, Future[bool]]] = []

    def __call__(self, figure: "Figure", folder: Path, name: str) -> list[Path]:
        """Have a figure saved, as ``save`` does; it is once the block has ended."""
        if not self._helpers:
            return save(figure, folder, name)
        job = pickle.dumps((figure, folder, name))
        self._jobs.append((figure, folder, name, self._threads.submit(self._hand_over, job)))
        return _paths(folder, name)

    def _hand_over(self, job: bytes) -> bool:
        helper = self._idle.get()
        try:
            assert helper.stdin is not None  # which are pipes
            assert helper.stdout is not None
            helper.stdin.write(job)
            helper.stdin.flush()
            return helper.stdout.readline() == SAVED
        except OSError:
            return False
        finally:
            self._idle.put(helper)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for figure, folder, name, saved in self._jobs if kind is None else ():
                if not saved.result():
                    save(figure, folder, name)
        finally:
            for helper in self._helpers:
                helper.kill()
            self._threads.shutdown(cancel_futures=True)
            for helper in self._helpers:
                helper.communicate()


def serve() -> None:
    """Save the figures that another process sends, one after the other."""
    while True:
        try:
            job = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        save(*job)
        sys.stdout.buffer.write(SAVED)
        sys.stdout.buffer.flush()
