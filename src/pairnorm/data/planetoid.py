"""The raw files of Planetoid: pickles of Python 2, read by an unpickler that knows matrices."""

from __future__ import annotations

import io
import pickle
from collections import defaultdict
from typing import Any

import numpy as np

PIECES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


class _Unpickler(pickle.Unpickler):
    """Finds the few classes that occur in these files, by the names they had when the files were written."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "csr_matrix":
            from scipy.sparse import csr_matrix

            return csr_matrix
        known = {
            "_reconstruct": np.zeros(0).__reduce__()[0],
            "ndarray": np.ndarray,
            "dtype": np.dtype,
            "defaultdict": defaultdict,
            "list": list,
        }
        if name not in known:
            raise pickle.UnpicklingError(f"{module}.{name} has no business in a Planetoid file")
        return known[name]


def read_planetoid(files: dict[str, bytes]) -> dict[str, Any]:
    """Return the ``edges`` [2, 2m], ``features`` (scipy CSR), ``labels`` and the number of ``train`` nodes.

    The test nodes of ``tx`` and ``ty`` come in the order of ``test.index``. Citeseer leaves out fifteen
    isolated nodes: as in every other reader, they get features of zero and, having no label, the first class.

    Args:
        files: the contents of each of the eight pieces.
    """
    from scipy.sparse import csr_matrix, vstack

    x, tx, allx, y, ty, ally, graph = (
        _Unpickler(io.BytesIO(files[piece]), encoding="latin1").load() for piece in PIECES[:-1]
    )
    test = np.array(files["test.index"].split(), dtype=np.int64)
    # Node i is row place[i] of all rows stacked; a node that no file has is the row of zeros at their end.
    place = np.full(test.max() + 1, allx.shape[0] + tx.shape[0])
    place[: allx.shape[0]] = np.arange(allx.shape[0])
    place[test] = allx.shape[0] + np.arange(tx.shape[0])
    source = np.repeat(np.array(list(graph)), [len(neighbours) for neighbours in graph.values()])
    target = np.array([node for neighbours in graph.values() for node in neighbours])
    return {
        "edges": np.stack([source, target]),
        "features": vstack([allx, tx, csr_matrix((1, x.shape[1]))], format="csr")[place],
        "labels": np.concatenate([ally, ty, np.zeros((1, y.shape[1]))])[place].argmax(1),
        "train": len(y),
    }
