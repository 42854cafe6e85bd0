"""The classifier of a user's nodes, in scikit-learn's manner."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import nn

from pairnorm.classify.candidates import Candidate, Task, check_size, compute_logits
from pairnorm.classify.evaluation import Scores, fit_temperature, mean_probabilities
from pairnorm.classify.scaling import Scaling, check_features
from pairnorm.classify.search import Plan, search
from pairnorm.classify.split import complete_split, fingerprints, unseen
from pairnorm.data import Graph, Split
from pairnorm.data.encoder import Encoder
from pairnorm.errors import PairNormError, one_of
from pairnorm.train.engine import find_device


class NodeClassifier:
    """Learns the classes of some nodes of a graph and predicts them for all, also where features are missing.

    Parameters only go into the constructor; what is learnt ends in an underscore: ``classes_``, ``best_``
    (the chosen ``Candidate``), ``search_`` (all that were tried), ``network_``, ``scaling_``,
    ``encoder_`` (how columns of files became features: ``Graph.from_files(..., encoder=...)`` reads others
    alike), ``temperature_`` (how much probabilities were softened to fit the validation nodes), ``split_``,
    and ``held_out_``, the ``Scores`` on the test nodes, which no choice has seen.

    SGC's part is convex and solved to the end, so it is the same for every seed; GCN and GAT are trained once
    per seed, and their probabilities averaged.

    Args:
        model: ``"SGC"``, ``"GCN"``, ``"GAT"``, several, or ``"auto"``: SGC, and with a budget the others.
        depth: a number of graph convolutions, several to choose from, or ``"auto"``.
        norm: ``"PN"``, ``"PN-SI"``, ``"PN-SCS"``, ``"none"``, several, or ``"auto"``: none, and the
            paper's (PN for SGC, PN-SI for GCN and GAT).
        scale: PairNorm's s, several, or ``"auto"``. For SGC it is also the strength of regularisation.
        scaling: of features: ``"rows"``, ``"columns"``, ``"none"`` or ``"auto"``; see ``Scaling``.
        adjacency: ``"rw"`` or ``"sym"``.
        hidden: width of GCN and GAT; 0 for the paper's.
        dropout: of GCN and GAT.
        epochs: of GCN and GAT.
        seeds: how many of each GCN and GAT are averaged.
        budget: time after which no GCN or GAT is gone on with: seconds, or a text such as ``"5m"``.
        device: ``"auto"``, ``"cpu"`` or ``"cuda"``.
        random_state: the first seed, and that of the split.

    Example:
        >>> import pairnorm
        >>> graph = pairnorm.csbm(300, classes=2, seed=1).with_split("per-class-20")
        >>> classifier = NodeClassifier(depth=[2, 4, 8]).fit(graph)
        >>> classifier.predict(graph)[:3]
        array(['1', '0', '0'], dtype='<U1')
        >>> classifier.score(graph) > 0.8
        True
    """

    def __init__(
        self,
        model: str | Sequence[str] = "auto",
        depth: str | int | Sequence[int] = "auto",
        norm: str | Sequence[str] = "auto",
        scale: str | float | Sequence[float] = "auto",
        *,
        scaling: str = "auto",
        adjacency: str = "rw",
        hidden: int = 0,
        dropout: float = 0.6,
        epochs: int = 500,
        seeds: int = 5,
        budget: float | str | None = None,
        device: str = "auto",
        random_state: int = 0,
    ) -> None:
        self.model, self.depth, self.norm, self.scale = model, depth, norm, scale
        self.scaling, self.adjacency = scaling, adjacency
        self.hidden, self.dropout, self.epochs, self.seeds = hidden, dropout, epochs, seeds
        self.budget, self.device, self.random_state = budget, device, random_state

    classes_: NDArray[np.str_]
    encoder_: Encoder | None
    n_features_in_: int
    best_: Candidate
    search_: list[Candidate]
    network_: nn.Module
    scaling_: Scaling
    temperature_: float
    split_: Split
    held_out_: Scores | None
    _seen: NDArray[np.int64]

    def fit(
        self, graph: Graph, y: None = None, *, progress: Callable[[int, int, str], None] | None = None
    ) -> Self:
        """Choose a model by validation and learn it.

        Args:
            graph: with labels on some nodes. What its split lacks is drawn, class by class.
            y: not used; labels are in the graph.
            progress: is told (steps done, steps in all, what was done last).
        """
        _check_graph(graph)
        check_features(graph)
        split = complete_split(graph, self.random_state)
        graph = graph.with_split(split)
        plan, done = Plan.of(self, graph), 0
        if plan.sgc:
            check_size(graph)
        scaling = Scaling.of(graph, self.scaling)
        task = Task(graph, scaling(graph), self.adjacency, find_device(self.device))

        def tick(what: str) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(done, plan.steps, what)

        self.search_, self.best_, self.network_ = search(task, plan, tick)
        chosen_by = graph.validation.to(task.device)
        logits = compute_logits(self.network_, graph, task.features, task.device)[chosen_by]
        self.temperature_ = fit_temperature(logits, graph.labels.to(task.device)[chosen_by])
        self.scaling_, self.split_ = scaling, split
        self._seen = fingerprints(graph.node_names[(split.train | split.validation).cpu().numpy()])
        self.classes_ = np.array(graph.class_names)
        self.encoder_, self.n_features_in_ = graph.encoder, graph.num_features
        test = split.test.cpu().numpy()
        self.held_out_ = self._scores(graph, test, self.predict_proba(graph)) if test.any() else None
        return self

    @property
    def feature_names_in_(self) -> tuple[str, ...] | None:
        """The names of the features, in order, where they have names."""
        return None if self.encoder_ is None else self.encoder_.feature_names

    def predict_proba(self, graph: Graph) -> NDArray[np.float32]:
        """Return the probability of every class for every node, [n, classes]; seeds are averaged.

        Args:
            graph: the one fitted on, or one that has changed since; features are matched by name.
        """
        self._check_fitted()
        _check_graph(graph)
        graph = graph.aligned(self.encoder_, self.n_features_in_)
        logits = compute_logits(self.network_, graph, self.scaling_(graph), find_device(self.device))
        return np.asarray(mean_probabilities(logits, self.temperature_).cpu().numpy())

    def predict(self, graph: Graph) -> NDArray[np.str_]:
        """Return the name of the most probable class of every node.

        Args:
            graph: as for ``predict_proba``.
        """
        likeliest = self.predict_proba(graph).argmax(1)
        return np.asarray(self.classes_[likeliest])

    def score(self, graph: Graph, y: None = None) -> float:
        """Return the accuracy on the test nodes.

        Args:
            graph: with labels. Without test nodes of its own, all labelled nodes are judged but those that
                ``fit`` learnt from or chose by, which are known by their names.
            y: not used.
        """
        self._check_fitted()
        _check_graph(graph)
        if not graph.labelled.any():
            raise PairNormError(f"graph {graph.name!r} has no labelled node; expected some to judge.")
        judged = graph.test.cpu().numpy() if graph.test.any() else unseen(graph, self._seen)
        if not judged.any():
            raise PairNormError(
                f"graph {graph.name!r}: each of its {int(graph.labelled.sum())} labelled nodes has the name "
                "of one that took part in fitting. Label others, or put those to judge in the test part."
            )
        return self._scores(graph, judged, self.predict_proba(graph)).accuracy

    def _scores(self, graph: Graph, judged: NDArray[np.bool_], probabilities: NDArray[np.float32]) -> Scores:
        labels = graph.labels_among(self.classes_.tolist()).cpu().numpy()
        return Scores.of(labels[judged], probabilities[judged].argmax(1), len(self.classes_))

    def _check_fitted(self) -> None:
        if not hasattr(self, "network_"):
            raise PairNormError(
                "this NodeClassifier is not fitted yet. Call fit(graph), or NodeClassifier.load."
            )

    @classmethod
    def _parameters(cls) -> list[str]:
        return [name for name in inspect.signature(cls.__init__).parameters if name != "self"]

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return what the constructor was given.

        Args:
            deep: not used; there are no nested estimators.
        """
        return {name: getattr(self, name) for name in self._parameters()}

    def set_params(self, **parameters: Any) -> Self:
        """Change what the constructor was given."""
        for name, value in parameters.items():
            setattr(self, one_of("parameter", name, self._parameters()), value)
        return self

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = (
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if repr(value) != repr(defaults[name].default)
        )
        return f"NodeClassifier({', '.join(changed)})"

    def save(self, folder: str | PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``model.json``, which is all that prediction needs.

        Args:
            folder: made if it is not there.
        """
        from pairnorm.classify.persistence import save

        self._check_fitted()
        save(self, folder)

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Self:
        """Read what ``save`` wrote. Nothing is unpickled.

        Args:
            folder: the one saved to.
        """
        from pairnorm.classify.persistence import load

        return load(cls, folder)


def _check_graph(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise PairNormError(
            f"graph is a {type(graph).__name__}; expected a pairnorm.Graph: Graph.from_edges, from_pyg or "
            "from_files makes one."
        )
