"""What a person wants to know about a graph at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pairnorm.data.graph import Graph


def describe(graph: Graph) -> str:
    """Return the lines that tell what is inside a graph."""
    per_node = 2 * graph.num_edges / max(graph.num_nodes, 1)
    lines = {
        "nodes": f"{graph.num_nodes:,}",
        "edges": f"{graph.num_edges:,} undirected, {per_node:.1f} per node",
        "features": _features(graph),
        "classes": _classes(graph),
        "labelled": _share(int(graph.labelled.sum()), graph.num_nodes),
        "split": ", ".join(f"{part} {int(mask.sum()):,}" for part, mask in graph.split._asdict().items()),
        "missing": _missing(graph),
        "homophily": homophily(graph),
    }
    text = [f"Graph {graph.name!r}", *(f"  {what:<10} {found}" for what, found in lines.items())]
    text += [f"  note       {note}" for note in graph.notes]
    return "\n".join(text)


def _share(part: int, whole: int) -> str:
    """Say how many, and what share of the whole that is.

    >>> _share(140, 2708)
    '140 (5.17%)'
    """
    return f"{part:,} ({100 * part / max(whole, 1):.3g}%)"


def _features(graph: Graph) -> str:
    kind = "sparse" if graph.features.layout == torch.sparse_csr else "dense"
    return f"{graph.num_features:,} {kind}, {100 * graph.density:.3g}% non-zero"


def _classes(graph: Graph, shown: int = 7) -> str:
    more = ", …" if graph.num_classes > shown else ""
    names = ", ".join(graph.class_names[:shown]) + more
    return f"{graph.num_classes} ({names})" if graph.num_classes else "none"


def _missing(graph: Graph) -> str:
    vectors = int(graph.missing_vectors.sum())
    text = f"{_share(vectors, graph.num_nodes)} vectors" if vectors else "no vector"
    if graph.missing.dim() == 2:
        single = int(graph.missing.sum()) - vectors * graph.num_features
        text += f", {single:,} single entries"
    return text


def homophily(graph: Graph) -> str:
    """Say what share of edges joins nodes of one class, and of how many edges that is known.

    Args:
        graph: with labels.
    """
    same, known = graph.edges_within_classes
    if known == 0:
        return "unknown: no edge joins two labelled nodes"
    return f"{graph.homophily:.3f}: {same:,} of {known:,} edges between labelled nodes join one class"
