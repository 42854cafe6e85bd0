"""Convert features and labels to tensors, and operate on features: scaling, missing values, structure."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from pairnorm.base.csr import sparse_csr, suppress_csr_warning
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.adjacency import check_csr, components, csr_matrix, csr_tensor
from pairnorm.data.files import quote_names
from pairnorm.data.ids import plain_integers

UNKNOWN = -1
BOOLEANS = ("False", "True")
# A largest label above this, and above the number of nodes, is a mistake.
MAX_EMPTY_CLASSES = 1000
SCALINGS = ("rows", "none")
# What a node's place among the edges tells, at a cost linear in them; for a graph that has no features.
STRUCTURAL_FEATURES = (
    "log degree",
    "mean log degree of neighbors",
    "deviation of log degree of neighbors",
    "log core number",
    "log size of component",
)


def row_normalize(features: Tensor) -> Tensor:
    """Divide each row by its L1 norm, x_i / sum_j |x_ij|; a row of zeros stays zero.

    >>> row_normalize(torch.tensor([[1.0, 3.0], [0.0, 0.0]]))
    tensor([[0.2500, 0.7500],
            [0.0000, 0.0000]])

    Args:
        features: [n, d], dense or ``torch.sparse_csr``; the result is of the same kind.
    """
    if features.layout != torch.sparse_csr:
        norms = features.abs().sum(1, keepdim=True)
        return features / torch.where(norms > 0, norms, 1)
    values, stored = features.values(), features.crow_indices().diff()
    # Adds in order, so that the result is the same every time on CUDA too, which index_add does not promise.
    norms = torch.segment_reduce(values.abs(), "sum", lengths=stored, initial=0)
    return with_values(features, values / torch.where(norms > 0, norms, 1).repeat_interleave(stored))


def stored_values(features: Tensor) -> Tensor:
    """Return the stored entries of a CSR tensor, [nnz], or all entries of a dense one, [n, d]."""
    return features.values() if features.layout == torch.sparse_csr else features


def stored_rows(features: Tensor) -> Tensor:
    """Return the row of each stored entry of a CSR tensor, int64 [nnz]."""
    numbers = torch.arange(features.shape[0], device=features.device)
    return torch.repeat_interleave(numbers, features.crow_indices().diff())


def with_values(features: Tensor, values: Tensor) -> Tensor:
    """Return a CSR tensor with the same pattern as ``features`` and other values."""
    return sparse_csr(features.crow_indices(), features.col_indices(), values, features.shape)


def take_columns(features: Tensor, places: Sequence[int]) -> Tensor:
    """Return the columns at ``places``."""
    if features.layout != torch.sparse_csr:
        return features[:, torch.tensor(places, dtype=torch.int64, device=features.device)]
    chosen = csr_matrix(features)[:, list(places)]
    chosen.sort_indices()
    return csr_tensor(chosen).to(features.device)


def append_columns(features: Tensor, missing: Tensor, values: NDArray[np.float32]) -> tuple[Tensor, Tensor]:
    """Append dense columns, NaN where missing, and return the features and their missing entries."""
    entries = missing if missing.dim() == 2 else missing[:, None].expand(features.shape)
    entries = torch.cat([entries, torch.from_numpy(np.isnan(values))], 1)
    dense = np.nan_to_num(values)
    if features.layout == torch.sparse_csr:
        from scipy.sparse import csr_array, hstack

        features = csr_tensor(hstack([csr_matrix(features), csr_array(dense)], format="csr"))
    else:
        features = torch.cat([features, torch.from_numpy(dense)], 1)
    return features, entries if entries.any() else entries.any(1)


def all_finite(features: Tensor) -> bool:
    """Return whether no entry is infinite or NaN."""
    values = stored_values(features)
    # A finite sum proves it ten times faster than a look at every entry; an infinite one may be an overflow.
    return bool(values.sum().isfinite() or values.isfinite().all())


def check_infinite(features: Tensor, node_names: Any, feature_names: Sequence[str] | None) -> None:
    """Raise an error that names the first feature that is infinite."""
    if not (infinite := stored_values(features).isinf()).any():
        return
    place = infinite.nonzero()[0].tolist()
    if features.layout == torch.sparse_csr:
        place = [int(stored_rows(features)[place[0]]), int(features.col_indices()[place[0]])]
    node, column = place
    feature = column if feature_names is None else quoted(feature_names[column])
    problem = f"feature {feature} of node {quoted(node_names.tolist()[node])} is not finite or beyond float32"
    hint = "Correct it, or make it NaN if it is missing."
    raise PairNormError(problem, code="not-finite", value=(node, column), hint=hint)


def nan_as_missing(features: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Replace NaN by zero, and add its positions to the missing mask; return features and mask.

    >>> nan_as_missing(torch.tensor([[1.0, 2.0], [torch.nan, torch.nan]]), torch.tensor([False, False]))
    (tensor([[1., 2.],
            [0., 0.]]), tensor([False,  True]))
    """
    sparse = features.layout == torch.sparse_csr
    empty = stored_values(features).isnan()
    filled = stored_values(features).masked_fill(empty, 0)
    entries = with_values(features, empty.float()).to_dense() > 0 if sparse else empty
    entries = entries | (missing if missing.dim() == 2 else missing[:, None])
    rows = entries.all(1)
    missing = rows if torch.equal(rows, entries.any(1)) else entries
    return with_values(features, filled) if sparse else filled, missing


def structural_features(adjacency: Tensor) -> Tensor:
    """Compute ``STRUCTURAL_FEATURES`` from the edges, [n, 5]; logarithms are of 1 + x."""
    matrix = csr_matrix(adjacency.cpu())
    matrix.data = np.ones_like(matrix.data)
    degrees = np.diff(matrix.indptr)
    logs = np.log1p(degrees)
    each = np.maximum(degrees, 1)
    mean = matrix @ logs / each
    variance = matrix @ logs**2 / each - mean**2
    members = components(adjacency).numpy()
    sizes = np.bincount(members)[members]
    columns = [logs, mean, np.sqrt(variance.clip(0)), np.log1p(core_numbers(matrix)), np.log1p(sizes)]
    return torch.from_numpy(np.stack(columns, 1).astype(np.float32)).to(adjacency.device)


def core_numbers(matrix: Any) -> NDArray[np.int64]:
    """Return the core number of each node: the largest k of a subgraph with it whose degrees are all >= k.

    Nodes of the smallest degree are removed together and repeatedly (Batagelj & Zaversnik, 2003); each edge
    is visited twice.
    """
    degrees = np.diff(matrix.indptr).astype(np.int64)
    cores = np.zeros(len(degrees), dtype=np.int64)
    remaining, core = np.flatnonzero(degrees > 0), 0
    gone = degrees == 0
    while len(remaining):
        core = max(core, int(degrees[remaining].min()))
        lowest = remaining[degrees[remaining] <= core]
        while len(lowest):
            cores[lowest], gone[lowest] = core, True
            touched, times = np.unique(matrix[lowest].indices, return_counts=True)
            touched, times = touched[~gone[touched]], times[~gone[touched]]
            degrees[touched] -= times
            lowest = touched[degrees[touched] <= core]
        remaining = remaining[~gone[remaining]]
    return cores


def as_tensor(
    name: str, values: Any, dtype: DTypeLike | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return numbers or booleans as a tensor, CSR where they are sparse, NaN for None and ``pandas.NA``."""
    if isinstance(values, Tensor):
        dense_or_csr = values.layout in (torch.strided, torch.sparse_csr)
        return values if dense_or_csr else to_dense_or_csr(name, values)
    with np.errstate(over="ignore"):  # infinite is found, and named, where it matters
        if hasattr(values, "tocsr"):
            matrix = values.tocsr(copy=True)
            matrix.sum_duplicates()
            return csr_tensor(matrix).to(device)
        return torch.from_numpy(np.require(_numbers(name, values), dtype, ["C", "W"])).to(device)


def as_array(name: str, values: Any) -> NDArray[Any]:
    """Convert values to a numpy array of any dtype; raise an error for rows of different lengths."""
    try:
        return np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    except ValueError as error:
        problem = f"{name} is a {type(values).__name__} whose rows differ in length"
        hint = "Make them equally long."
        raise PairNormError(problem, code="wrong-shape", value=name, hint=hint) from error


def _numbers(name: str, values: Any) -> NDArray[Any]:
    """Return an array of numbers, NaN for None and its like; raise an error for texts and dates."""
    array = as_array(name, values)
    if array.dtype == object:
        with suppress(TypeError, ValueError):
            numbers = [np.nan if is_null(value) else float(value) for value in array.ravel()]
            array = np.array(numbers).reshape(array.shape)
    if array.dtype.kind in "biuf":
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    text = next((value for value in array.ravel() if isinstance(value, str)), None)
    problem = f"{name} is a {type(values).__name__} of {array.dtype}"
    problem = problem if text is None else f"{name} holds {quoted(str(text))}"
    hint = "Graph.from_frames reads columns of text and dates." if name == "features" else ""
    raise PairNormError(problem, code="wrong-type", value=name, expected="numbers", hint=hint)


def is_null(value: object) -> bool:
    """Return whether a value is None, NaN, or pandas' NA or NaT (by name: pandas may be absent)."""
    number = isinstance(value, float | np.floating)
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(number and value != value)


def to_endpoints(edge_index: Any) -> NDArray[np.int64]:
    """Return the two ends of each edge, int64 [2, edges]."""
    sparse = hasattr(edge_index, "tocsr") or getattr(edge_index, "layout", torch.strided) != torch.strided
    array = as_array("edge_index", None if sparse else edge_index)
    kind = array.dtype.kind
    if array.ndim == 2 and len(array) == 2 and (kind in "iu" or array.size == 0):
        return array.astype(np.int64, copy=False)
    if array.shape == (0,):  # an empty list
        return np.zeros((2, 0), np.int64)
    description, hint = f"{array.dtype} of shape {array.shape}", ""
    if array.ndim == 0:
        description = f"a {type(edge_index).__name__}"
    if sparse or (array.ndim == 2 and 2 < len(array) == array.shape[1]):
        hint = "Graph.from_scipy takes an adjacency matrix."
    elif array.ndim and kind in "OUST":
        hint = "Graph.from_frames takes edges between names."
    elif array.ndim == 2 and len(array) == 2:
        hint = "Pass whole numbers: edge_index.astype(int)."
    elif array.ndim == 2 and array.shape[1] == 2:
        hint = "Transpose it: numpy.transpose(edge_index)."
    problem = f"edge_index is {description}"
    raise PairNormError(problem, code="wrong-shape", expected="whole numbers, [2, edges]", hint=hint)


def to_dense_or_csr(name: str, matrix: Tensor) -> Tensor:
    """Validate a sparse tensor and convert it to CSR; return a dense one unchanged."""
    if matrix.layout == torch.strided:
        return matrix
    if matrix.dim() != 2:
        raise PairNormError(f"{name} has shape {tuple(matrix.shape)}", code="wrong-shape", expected="[n, d]")
    rows, columns = matrix.shape
    if matrix.layout == torch.sparse_csr:
        check_csr(name, matrix.crow_indices(), matrix.col_indices(), matrix.values().numel(), (rows, columns))
        return matrix
    if matrix.layout == torch.sparse_csc:
        check_csr(name, matrix.ccol_indices(), matrix.row_indices(), matrix.values().numel(), (columns, rows))
    elif matrix.layout == torch.sparse_coo:
        entries = matrix._values().numel()
        for ends, size in zip(matrix._indices(), (rows, columns), strict=True):
            check_csr(name, [0, entries], ends, entries, (1, size))
    else:
        problem = f"{name} is a {matrix.layout} tensor"
        raise PairNormError(problem, code="wrong-shape", expected="a dense, CSR, CSC or COO one")
    suppress_csr_warning()
    return matrix.to_sparse_csr()


def to_labels(
    labels: Any, class_names: Sequence[str] | None, device: torch.device | str | None = None
) -> tuple[Tensor, tuple[str, ...] | None, bool]:
    """Convert labels to class numbers, int64 [n]; also return class names, and whether they were typed.

    Typed labels are numbers or booleans; numbers have no class names.
    """
    if not isinstance(labels, Tensor) and _are_texts(as_array("labels", labels)):
        codes, class_names = _named_classes(labels, class_names)
        labels = torch.from_numpy(codes).to(device)
    numbered = class_names is None
    if numbered and _are_booleans(labels):
        class_names = BOOLEANS
    labels = to_class_numbers("labels", as_tensor("labels", labels, device=device))
    return labels, None if class_names is None else tuple(class_names), numbered


def _are_texts(labels: NDArray[Any]) -> bool:
    """Return whether classes are given by name."""
    cells = labels.ravel() if labels.dtype == object else ()
    return labels.dtype.kind in "UST" or any(isinstance(cell, str) for cell in cells)


def _are_booleans(labels: Any) -> bool:
    """Return whether classes are True and False, except where unknown."""
    if isinstance(labels, Tensor):
        return labels.dtype == torch.bool
    array = as_array("labels", labels)
    known = (label for label in array.ravel() if not is_null(label)) if array.dtype == object else ()
    return array.dtype == bool or {type(label) for label in known} in ({bool}, {np.bool_})


def _named_classes(labels: Any, known: Sequence[str] | None) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return the class number of each node, and the class names, in the order of ``known`` if given."""
    cells = np.asarray(labels, object).ravel()  # among texts alone numpy would write NaN as one
    texts = [None if is_null(cell) or cell == "" else str(cell) for cell in cells]
    distinct = {text for text in texts if text is not None}
    names = tuple(sorted(distinct, key=class_sort_key)) if known is None else tuple(known)
    if unknown := sorted(distinct.difference(names), key=class_sort_key):
        problem, expected = f"a label is {quoted(unknown[0])}", f"one of class_names: {quote_names(names, 7)}"
        raise PairNormError(problem, code="unknown-class", value=unknown[0], expected=expected)
    numbers: dict[str | None, int] = {name: number for number, name in enumerate(names)}
    return np.array([numbers.get(text, UNKNOWN) for text in texts], np.int64), names


def to_class_numbers(name: str, labels: Tensor) -> Tensor:
    """Return the classes of nodes as int64 [n], -1 for NaN; fractions are refused."""
    if labels.dim() == 0 or labels.numel() != len(labels):
        problem = f"{name} has shape {tuple(labels.shape)}"
        raise PairNormError(problem, code="wrong-shape", expected="one class per node, [n]")
    labels = labels.reshape(-1)
    if not labels.is_floating_point():
        return labels.long()
    classes, known = labels.nan_to_num(-1).long(), ~labels.isnan()
    if not torch.equal(classes[known].to(labels.dtype), labels[known]):
        problem, expected = f"{name} holds fractions", "the number of a class for each node"
        raise PairNormError(problem, code="not-a-whole-number", expected=expected)
    return classes


def numbered_classes(labels: Tensor) -> tuple[str, ...]:
    """Return the names of classes that have none: '0', '1', ..."""
    largest = int(labels.max()) if labels.numel() else UNKNOWN
    if largest >= max(labels.numel(), MAX_EMPTY_CLASSES):
        problem = f"the largest label is {largest:,}, but there are {labels.numel():,} nodes"
        hint = "Number classes from 0 without gaps."
        raise PairNormError(problem, code="out-of-range", value=largest, hint=hint)
    return tuple(map(str, range(largest + 1)))


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise an error that names the first node whose label is no class."""
    wrong = (labels < UNKNOWN) | (labels >= classes)
    if wrong.any():
        node = int(wrong.nonzero()[0])
        problem = f"labels[{node}] is {int(labels[node])}"
        expected = f"a class from 0 to {classes - 1}, or -1 where it is unknown"
        raise PairNormError(problem, code="out-of-range", value=int(labels[node]), expected=expected)


def class_sort_key(text: str) -> tuple[int, int, str]:
    """Sort '10' after '9', and words after numbers."""
    return (0, int(text), text) if text.isdecimal() and text.isascii() and len(text) < 19 else (1, 0, text)


def restore_class_types(names: Sequence[str], numbered: bool) -> NDArray[Any]:
    """Convert class names back to integers or booleans where all are written so; else return texts.

    >>> restore_class_types(["0", "10"], numbered=True), restore_class_types(["0", "01"], numbered=True)
    (array([ 0, 10]), array(['0', '01'], dtype='<U2'))
    """
    if numbered and (integers := plain_integers(names)) is not None:
        return integers
    if numbered and set(names) <= set(BOOLEANS):
        return np.array([name == "True" for name in names])
    return np.array(names, str)
