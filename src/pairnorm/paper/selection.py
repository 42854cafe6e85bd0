"""Which experiments a command is about, made smaller where it asks for that."""

from collections.abc import Sequence
from dataclasses import dataclass

from pairnorm.errors import PairNormError, one_of
from pairnorm.paper.experiment import DATASETS, Experiment
from pairnorm.paper.grids import EXPERIMENTS, NAMES


@dataclass(frozen=True)
class Selection:
    """What to reproduce, and how much of it.

    Args:
        what: names of experiments; ``all`` for every one.
        datasets: only these graphs.
        runs: so many runs instead of the paper's.
        epochs: so many epochs instead of the paper's.
        depths: these depths instead of the paper's.
        missing: only these percentages of missing vectors.

    >>> [table] = Selection(["table1"], datasets=["cora"], runs=1, missing=[0, 100]).experiments()
    >>> len(list(table.pairs()))
    240
    """

    what: Sequence[str] = ("all",)
    datasets: Sequence[str] | None = None
    runs: int | None = None
    epochs: int | None = None
    depths: Sequence[int] | None = None
    missing: Sequence[int] | None = None

    def experiments(self) -> list[Experiment]:
        """Return the experiments; complain if nothing of what was asked for by name is left."""
        for name in self.what:
            one_of("what to reproduce", name, NAMES)
        asked = (
            list(EXPERIMENTS) if "all" in self.what else [name for name in self.what if name in EXPERIMENTS]
        )
        found = [
            experiment for name in dict.fromkeys(asked) if (experiment := self.narrow(EXPERIMENTS[name]))
        ]
        for percent in self.missing or ():
            if asked and not any(percent in EXPERIMENTS[name].missing for name in asked):
                rates = sorted({rate for name in asked for rate in EXPERIMENTS[name].missing})
                raise PairNormError(
                    f"missing is {percent}; {', '.join(self.what)} has {', '.join(map(str, rates))}%."
                )
        if asked and not found:
            known = EXPERIMENTS[asked[0]]
            raise PairNormError(
                f"nothing of {', '.join(self.what)} is left. {known.name} has the graphs "
                f"{', '.join(known.datasets)} and {', '.join(map(str, known.missing))}% missing."
            )
        return found

    def names(self) -> list[str]:
        """Return what was asked for, ``all`` spelt out."""
        return [name for name in NAMES if name != "all"] if "all" in self.what else list(self.what)

    def narrow(self, experiment: Experiment) -> Experiment | None:
        """Return an experiment as small as asked for, None if nothing of it is left."""
        return experiment.narrowed(
            datasets=self.datasets,
            runs=self.runs,
            epochs=self.epochs,
            depths=self.depths,
            missing=self.missing,
        )

    @property
    def options(self) -> str:
        """The options as they are written on a command line."""
        values = {
            "dataset": self.datasets,
            "runs": self.runs and [self.runs],
            "epochs": self.epochs and [self.epochs],
            "depths": self.depths,
            "missing": self.missing,
        }
        return "".join(f" --{name} {','.join(map(str, value))}" for name, value in values.items() if value)


def split_names(text: str | None) -> list[str] | None:
    """Read ``cora,citeseer``; None and ``all`` stand for no choice.

    >>> split_names("cora, pubmed")
    ['cora', 'pubmed']
    """
    if text is None or text == "all":
        return None
    return [one_of("dataset", name.strip().lower(), DATASETS) for name in text.split(",")]


def split_numbers(what: str, text: str | None) -> list[int] | None:
    """Read ``2,4,8``.

    >>> split_numbers("depths", "2,4")
    [2, 4]
    """
    if text is None:
        return None
    try:
        return [int(word.strip().removesuffix("%")) for word in text.split(",")]
    except ValueError:
        raise PairNormError(f"{what} is {text!r}; expected whole numbers with commas, such as 2,4.") from None
