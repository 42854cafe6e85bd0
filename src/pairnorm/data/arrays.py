"""Convert lists and arrays of numpy, pandas, scipy or torch to tensors."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from pairnorm.base.csr import suppress_csr_warning
from pairnorm.base.errors import PairNormError, quoted
from pairnorm.data.adjacency import check_csr, csr_tensor


def as_tensor(
    what: str, values: Any, dtype: DTypeLike | None = None, device: torch.device | str | None = None
) -> Tensor:
    """Return numbers or truths as a tensor, CSR where they are sparse, NaN for None and ``pandas.NA``.

    Args:
        what: their name in errors.
        values: a tensor keeps its type and its place.
        dtype: for any other but a scipy matrix, whose tensor is float32. Default: that of the array.
        device: likewise.
    """
    if isinstance(values, Tensor):
        dense_or_csr = values.layout in (torch.strided, torch.sparse_csr)
        return values if dense_or_csr else plain_or_csr(what, values)
    with np.errstate(over="ignore"):  # infinite is found, and named, where it matters
        if hasattr(values, "tocsr"):
            matrix = values.tocsr(copy=True)
            matrix.sum_duplicates()
            return csr_tensor(matrix).to(device)
        return torch.from_numpy(np.require(_numbers(what, values), dtype, ["C", "W"])).to(device)


def as_array(what: str, values: Any) -> NDArray[Any]:
    """Return values as an array, of any kind; rows of different lengths are refused."""
    try:
        return np.asarray(values.cpu() if isinstance(values, Tensor) else values)
    except ValueError as error:
        problem = f"{what} is a {type(values).__name__} whose rows differ in length"
        raise PairNormError(
            problem, code="wrong-shape", value=what, hint="Make them equally long."
        ) from error


def _numbers(what: str, values: Any) -> NDArray[Any]:
    array = as_array(what, values)
    if array.dtype == object:
        with suppress(TypeError, ValueError):
            numbers = [np.nan if is_absent(one) else float(one) for one in array.ravel()]
            array = np.array(numbers).reshape(array.shape)
    if array.dtype.kind in "biuf":
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    text = next((one for one in array.ravel() if isinstance(one, str)), None)
    problem = f"{what} is a {type(values).__name__} of {array.dtype}"
    problem = problem if text is None else f"{what} holds {quoted(str(text))}"
    hint = "Graph.from_frames reads columns of text and dates." if what == "features" else ""
    raise PairNormError(problem, code="wrong-type", value=what, expected="numbers", hint=hint)


def is_absent(value: object) -> bool:
    """Say whether a value is None, NaN, or pandas' NA or NaT, by name: pandas may not be there."""
    number = isinstance(value, float | np.floating)
    return value is None or type(value).__name__ in ("NAType", "NaTType") or bool(number and value != value)


def as_ends(edge_index: Any) -> NDArray[np.int64]:
    """Return the two ends of each edge, int64 [2, edges]."""
    sparse = hasattr(edge_index, "tocsr") or getattr(edge_index, "layout", torch.strided) != torch.strided
    array = as_array("edge_index", None if sparse else edge_index)
    kind = array.dtype.kind
    if array.ndim == 2 and len(array) == 2 and (kind in "iu" or array.size == 0):
        return array.astype(np.int64, copy=False)
    if array.shape == (0,):  # an empty list
        return np.zeros((2, 0), np.int64)
    found, hint = f"{array.dtype} of shape {array.shape}", ""
    if array.ndim == 0:
        found = f"a {type(edge_index).__name__}"
    if sparse or (array.ndim == 2 and 2 < len(array) == array.shape[1]):
        hint = "Graph.from_scipy takes an adjacency matrix."
    elif array.ndim and kind in "OUST":
        hint = "Graph.from_frames takes edges between names."
    elif array.ndim == 2 and len(array) == 2:
        hint = "Pass whole numbers: edge_index.astype(int)."
    elif array.ndim == 2 and array.shape[1] == 2:
        hint = "Transpose it: numpy.transpose(edge_index)."
    problem = f"edge_index is {found}"
    raise PairNormError(problem, code="wrong-shape", expected="whole numbers, [2, edges]", hint=hint)


def plain_or_csr(what: str, matrix: Tensor) -> Tensor:
    """Return a sparse tensor as CSR once its indices are known to be within it; a dense one as it is."""
    if matrix.layout == torch.strided:
        return matrix
    if matrix.dim() != 2:
        raise PairNormError(f"{what} has shape {tuple(matrix.shape)}", code="wrong-shape", expected="[n, d]")
    rows, columns = matrix.shape
    if matrix.layout == torch.sparse_csr:
        check_csr(what, matrix.crow_indices(), matrix.col_indices(), matrix.values().numel(), (rows, columns))
        return matrix
    if matrix.layout == torch.sparse_csc:
        check_csr(what, matrix.ccol_indices(), matrix.row_indices(), matrix.values().numel(), (columns, rows))
    elif matrix.layout == torch.sparse_coo:
        entries = matrix._values().numel()
        for ends, size in zip(matrix._indices(), (rows, columns), strict=True):
            check_csr(what, [0, entries], ends, entries, (1, size))
    else:
        problem = f"{what} is a {matrix.layout} tensor"
        raise PairNormError(problem, code="wrong-shape", expected="a dense, CSR, CSC or COO one")
    suppress_csr_warning()
    return matrix.to_sparse_csr()
