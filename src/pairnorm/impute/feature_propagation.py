"""Feature propagation (Rossi et al., 2021): missing features become harmonic, known ones stay."""

from torch import Tensor

from pairnorm.base.errors import whole_number
from pairnorm.impute.known import diffuse, mask_of, through_weights
from pairnorm.nn import SparseMatrix


def feature_propagation(matrix: SparseMatrix, features: Tensor, known: Tensor, *, steps: int = 40) -> Tensor:
    r"""Diffuse the known features, set back to what they were after every step.

    $$\mathbf{X} \leftarrow \mathbf{M} \circ \mathbf{X}_0 + (1 - \mathbf{M}) \circ \mathbf{P} \mathbf{X}$$

    The limit solves $\mathbf{X} = \mathbf{P} \mathbf{X}$ at the missing places. What no known value reaches
    within ``steps`` is zero.

    Args:
        matrix: P; ``normalized_adjacency(adjacency, "sym")`` as in the authors' code. (PyG's transform leaves
            out the self-loops.) With ``"rw"`` a constant feature stays constant.
        features: [n, d], dense or ``torch.sparse_csr``; or any block of its columns.
        known: bool [n], [n, d], [n, trials, 1] or [n, trials, d].
        steps: how many steps.
    """
    whole_number("steps", steps)
    mask = mask_of(features, known)
    gate = (~mask).to(features.dtype)
    return through_weights(lambda values: diffuse(matrix, values, gate, steps), features, mask)
