"""Graphs: the class, named and generated graphs, readers of a user's files, and masks of missing values."""

from typing import TYPE_CHECKING, Any

from pairnorm.data.constructors import GraphWarning
from pairnorm.data.encoder import Column, ColumnOptions, Encoder
from pairnorm.data.features import row_normalize
from pairnorm.data.graph import Graph
from pairnorm.data.masks import (
    Features,
    Missing,
    Split,
    features_after,
    given_missing,
    missing_by_class,
    missing_by_degree,
    missing_by_value,
    missing_entries,
    missing_nodes,
    missing_vectors,
    per_class,
    random_split,
)
from pairnorm.data.named import Dataset, csbm, datasets, load
from pairnorm.data.packed import PackedGraph

if TYPE_CHECKING:
    from pairnorm.data.packing import pack

__all__ = [
    "Column",
    "ColumnOptions",
    "Dataset",
    "Encoder",
    "Features",
    "Graph",
    "GraphWarning",
    "Missing",
    "PackedGraph",
    "Split",
    "csbm",
    "datasets",
    "features_after",
    "given_missing",
    "load",
    "missing_by_class",
    "missing_by_degree",
    "missing_by_value",
    "missing_entries",
    "missing_nodes",
    "missing_vectors",
    "pack",
    "per_class",
    "random_split",
    "row_normalize",
]


def __getattr__(name: str) -> Any:
    if name == "pack":  # it needs pandas, which the core does without
        from pairnorm.data.packing import pack

        return pack
    raise AttributeError(f"module 'pairnorm.data' has no attribute {name!r}")
