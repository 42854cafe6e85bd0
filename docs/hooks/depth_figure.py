"""Draw the figure of the README from results/depth.csv: ``python docs/hooks/depth_figure.py``."""

import csv
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

ROOT = Path(__file__).parents[2]
# Gray text is legible on light and on dark pages; the background is transparent.
GRAY = "#808890"
METHODS = {
    "PN-SI": ("PairNorm", "#0080c0", "o", "-"),
    "BatchNorm": ("BatchNorm", "#e07000", "s", "--"),
    "GCNII": ("GCNII", "#20a070", "^", "--"),
    "none": ("no method", GRAY, "D", "--"),
}


def main() -> None:
    """Write docs/assets/depth.png: GCN on Cora, test accuracy against depth with 95% intervals."""
    with (ROOT / "results/depth.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["dataset"], row["model"]) == ("cora", "GCN")]
    plt.rcParams |= {"font.size": 13, "text.color": GRAY, "axes.labelcolor": GRAY, "axes.edgecolor": GRAY}
    plt.rcParams |= {"xtick.color": GRAY, "ytick.color": GRAY}
    figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for method, (name, color, marker, line) in METHODS.items():
        chosen = [row for row in rows if method in row.values() and row["missing_percent"] == "100"]
        depths = [int(row["depth"]) for row in chosen]
        accuracy = [100 * float(row["accuracy"]) for row in chosen]
        # 2.776: the 97.5% quantile of Student's t with four degrees of freedom, for five runs.
        error = [100 * 2.776 * float(row["accuracy_std"]) / int(row["runs"]) ** 0.5 for row in chosen]
        style = {"color": color, "marker": marker, "linestyle": line, "linewidth": 2, "capsize": 3}
        axis.errorbar(depths, accuracy, error, label=name, **style)
    ticks = [2, 4, 8, 16, 32, 64]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, list(map(str, ticks)))
    axis.set(xlabel="layers", ylabel="test accuracy (%)")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", alpha=0.3)
    axis.legend(frameon=False, ncols=4, loc="lower left", bbox_to_anchor=(-0.1, 1), columnspacing=1)
    figure.savefig(ROOT / "docs/assets/depth.png", dpi=120, transparent=True, metadata={"Software": None})


if __name__ == "__main__":
    main()
