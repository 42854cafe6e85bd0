"""What a Probe writes down of one call of one convolution."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pairnorm.errors import PairNormError, one_of
from pairnorm.measure.differences import Estimate, col_diff, row_diff, tpsd
from pairnorm.measure.edges import Adjacency
from pairnorm.measure.energy import dirichlet_energy, mean_average_distance
from pairnorm.measure.pairs import apd, apsd
from pairnorm.measure.rank import effective_rank

Measure = Callable[[Tensor], Tensor]

# Exact distances of this many coordinates take half a second on two cores: 20,000 nodes with 64 features.
EXACT_WORK = 20_000**2 * 64

_OF_STATES: dict[str, Measure] = {
    "tpsd": tpsd,
    "mean_average_distance": mean_average_distance,
    "effective_rank": effective_rank,
}
_NAMES = ["row_diff", "col_diff", "apd", "apsd", "dirichlet_energy", *_OF_STATES]


@dataclass(frozen=True)
class Record:
    """One call of one convolution: its measures, one value per trial, and distances of node pairs."""

    forward: int
    layer: int
    name: str
    nodes: int
    measures: dict[str, Tensor]
    distances: dict[str, Tensor]


@dataclass(frozen=True)
class Measures:
    """The measures a Probe takes, and how many random pairs stand in where all would take too long."""

    chosen: Sequence[str] | Mapping[str, Measure]
    sample: int
    seed: int

    def __post_init__(self) -> None:
        if isinstance(self.chosen, str) or not self.chosen:
            raise PairNormError(
                f"measures is {self.chosen!r}; expected a list of names such as ['row_diff']."
            )
        if not isinstance(self.chosen, Mapping):
            for name in self.chosen:
                one_of("a name in measures", name, _NAMES)
        if self.sample < 2:
            raise PairNormError(f"sample is {self.sample}; expected a number of pairs, at least 2.")

    def __call__(self, x: Tensor, pairs: dict[str, Tensor], graph: Adjacency | None) -> dict[str, Tensor]:
        """Return each measure of ``x``; those of pairs once for each kind of ``pairs``."""
        if isinstance(self.chosen, Mapping):
            return {name: _checked(name, measure(x), x.shape[1:-1]) for name, measure in self.chosen.items()}
        values: dict[str, Tensor] = {}
        for name in self.chosen:
            if name == "row_diff":
                values |= _columns(name, row_diff(x, self._draw(len(x), x.shape[-1]), self.seed))
            elif name == "col_diff":
                values |= _columns(name, col_diff(x, self._draw(x.shape[-1], len(x)), self.seed))
            elif name == "apd":
                values |= {f"apd_{kind}": apd(x, chosen) for kind, chosen in pairs.items()}
            elif name == "apsd":
                values |= {f"apsd_{kind}": apsd(x, chosen) for kind, chosen in pairs.items()}
                values["apsd_random"] = tpsd(x) / max(1, len(x) ** 2)
            elif name == "dirichlet_energy":
                if graph is None:
                    raise PairNormError(
                        f"{name} needs a graph and none was found; give Probe(..., adjacency=...)."
                    )
                values[name] = dirichlet_energy(x, graph)
            else:
                values[name] = _OF_STATES[name](x)
        return values

    def _draw(self, rows: int, width: int) -> int | None:
        return self.sample if rows**2 * width > EXACT_WORK else None


def _checked(name: str, value: Tensor, trials: torch.Size) -> Tensor:
    value = torch.as_tensor(value)
    if value.shape != trials:
        raise PairNormError(
            f"measure {name!r} gave shape {list(value.shape)}; expected one value per trial: {list(trials)}."
        )
    return value


def _columns(name: str, value: Tensor | Estimate) -> dict[str, Tensor]:
    if isinstance(value, Estimate):
        return {name: value.value, f"{name}_standard_error": value.standard_error}
    return {name: value}
