"""Style and write figures: for print and color-blind readers, with reproducible bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pairnorm.base.files import atomic_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito: distinguishable for color-blind readers, and dark enough on white.
BLUE, VERMILLION, GREEN, PURPLE, ORANGE, GRAY = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#555555"
)  # fmt: skip
PARTS = {"train": BLUE, "validation": PURPLE, "test": VERMILLION}
MARKERS = {"train": "s", "validation": "^", "test": "o"}
PLAIN: Literal["dashed"] = "dashed"
NORMALIZED: Literal["solid"] = "solid"
NORMS = {"none": VERMILLION, "PN": BLUE, "PN-SI": GREEN, "PN-SCS": PURPLE}
DOTS_PER_INCH = 200
ONE_COLUMN, TWO_COLUMNS = 3.3, 6.8
"""Widths, in inches, at which figures are printed."""

_SETTINGS = {
    "font.family": "DejaVu Sans",  # comes with matplotlib, so that every machine has it
    "font.size": 8,
    "axes.titlesize": 8.5,
    "axes.titley": 1.0,  # its default; the automatic search takes a tenth of the time
    "axes.labelsize": 8,
    "legend.fontsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3,
    "lines.dashed_pattern": (3.2, 1.6),
    "legend.frameon": False,
    "pdf.fonttype": 42,
    "pdf.compression": 6,
    "hatch.linewidth": 0.8,
}


@contextmanager
def style() -> Iterator[None]:
    """Use the plotting style of this package within the context, overriding the user's settings."""
    import matplotlib
    import matplotlib.style

    with matplotlib.rc_context(), matplotlib.style.context(["default", _SETTINGS]):  # type: ignore[list-item]
        yield


def new_figure(width: float, height: float) -> "Figure":
    """Return an empty figure, in inches, that fits what is drawn outside its axes."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def use_integer_ticks(axis: "Axes") -> None:
    """Put the ticks of the x axis at integers, and start it at 0."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1))
    axis.set_xlim(left=0)


def save(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write ``name.png`` and ``name.pdf``; the same figure gives the same bytes: no dates, no versions."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from PIL import Image

    paths = [folder / f"{name}.png", folder / f"{name}.pdf"]
    # Use the canvases: figure.savefig draws everything twice.
    with style():
        figure.set_dpi(DOTS_PER_INCH)
        canvas = FigureCanvasAgg(figure)  # type: ignore[no-untyped-call]
        canvas.draw()
        # Nothing is transparent: without that channel a file compresses faster.
        image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")
        with atomic_file(paths[0]) as draft:
            image.save(draft, "png", compress_level=3, dpi=(DOTS_PER_INCH, DOTS_PER_INCH))
        figure.set_layout_engine("none")  # everything has its place by now, and to find it takes long
        pages, named = BytesIO(), {"CreationDate": None, "Creator": None, "Producer": None}
        FigureCanvasPdf(figure).print_pdf(pages, metadata=named)  # type: ignore[no-untyped-call]
        with atomic_file(paths[1]) as draft:  # matplotlib's own writing fails oddly on a full disk
            draft.write_bytes(pages.getvalue())
    return paths
