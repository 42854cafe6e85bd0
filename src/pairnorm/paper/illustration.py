"""Figure 2: the two steps of PairNorm, centring and rescaling, on points of the plane."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from pairnorm.data import features_after, load
from pairnorm.nn import pair_norm, propagation
from pairnorm.paper.style import BLUE, GREEN, ORANGE, new_figure, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CLASSES = ("Neural_Networks", "Theory", "Genetic_Algorithms")
COLOURS = dict(zip(CLASSES, (BLUE, ORANGE, GREEN), strict=True))
SMOOTHING = 2
SPREAD = 0.35
"""Standard deviation of a coordinate before PairNorm: small enough that rescaling shows."""


def steps() -> tuple[dict[str, Tensor], Tensor]:
    """Return the points before PairNorm, centred, and rescaled, each [nodes, 2], and their classes.

    The points are Cora's papers of three fields after two convolutions. Their coordinates say how much their
    words resemble those of the training papers of the first and of the last field.
    """
    graph = load("cora")
    values = features_after(graph).values.to_dense()
    numbers = [list(graph.class_names).index(name) for name in CLASSES]
    centres = [values[graph.train & (graph.labels == number)].mean(0) for number in numbers]
    plane = values @ torch.stack([centres[0], centres[-1]]).T
    matrix = propagation(graph.adjacency)
    for _ in range(SMOOTHING):
        plane = (matrix @ plane.unsqueeze(1)).squeeze(1)
    chosen = torch.isin(graph.labels, torch.tensor(numbers))
    plane = plane[chosen]
    before = SPREAD * plane / plane.std(0)
    centred = before - before.mean(0)
    points = {"graph convolution": before, "centred": centred, "rescaled": pair_norm(before, 1.0, "PN")}
    labels = torch.tensor([numbers.index(int(label)) for label in graph.labels[chosen]])
    return points, labels


def figure2() -> "Figure":
    """Draw the input of PairNorm, then the same points centred and rescaled."""
    points, labels = steps()
    with style():
        figure = new_figure(10.2, 4.3)
        axes = figure.subplots(1, 3, sharex=True, sharey=True)
        titles = (
            r"output of graph convolution, $\tilde{x}_i$",
            r"centred, $\tilde{x}^c_i$",
            r"rescaled, $\dot{x}_i$, with $s = 1$",
        )
        for axis, title, plane in zip(axes, titles, points.values(), strict=True):
            axis.axhline(0, color="#aaaaaa", linewidth=0.8)
            axis.axvline(0, color="#aaaaaa", linewidth=0.8)
            for number, name in enumerate(CLASSES):
                some = plane[labels == number]
                axis.plot(
                    some[:, 0].numpy(),
                    some[:, 1].numpy(),
                    linestyle="none",
                    marker=("o", "^", "s")[number],
                    markersize=2.6,
                    markeredgewidth=0,
                    alpha=0.6,
                    color=COLOURS[name],
                    label=name.replace("_", " ").capitalize(),
                )
            mean = plane.mean(0)
            axis.plot(*mean.tolist(), marker="X", markersize=9, color="black", markeredgecolor="white",
                      linestyle="none", label="mean")  # fmt: skip
            axis.set_title(title)
            axis.set_aspect("equal")
            axis.grid(False)
            axis.set(xlim=(-2.1, 2.7), ylim=(-1.7, 3.1))
        turn = torch.linspace(0, 2 * torch.pi, 200)
        axes[2].plot(
            turn.cos().numpy(), turn.sin().numpy(), "k:", linewidth=1.4, label="root mean square length"
        )
        handles, names = axes[2].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=5, markerscale=1.6)
        return figure
