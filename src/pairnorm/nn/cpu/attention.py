"""Attention over a pattern in numba: weights ``[entries, trials]`` are kept, never messages with features."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from pairnorm.nn.cpu import activate
from pairnorm.nn.cpu.sparse import multiply
from pairnorm.nn.dropout import dropout

if TYPE_CHECKING:
    from pairnorm.nn.sparse import Pattern

DTYPES = (torch.float32,)
FAST = {"reassoc", "contract", "arcp", "nsz"}


class Attend(torch.autograd.Function):
    """``pairnorm.nn.attention.attend`` for the scores and features of one layer; differentiable once."""

    @staticmethod
    def forward(
        ctx: Any,
        pattern: "Pattern",
        scores: Tensor,
        z: Tensor,
        bias: Tensor | None,
        activation: str,
        slope: float,
        rate: float,
        keys: Tensor | None,
    ) -> Tensor:
        """Return ``[nodes, trials, features]``."""
        crow, column = pattern.crow.numpy(), pattern.column.numpy()
        source, target = scores.permute(2, 1, 0).contiguous()
        weights = torch.empty(source.size(0), pattern.num_entries)
        _shifted_scores(crow, column, source.numpy(), target.numpy(), slope, weights.numpy())
        weights.exp_()  # torch has a vectorised exp, numba does not
        _normalise_rows(crow, weights.numpy())
        kept = weights if keys is None else dropout(weights.unsqueeze(0), rate, keys).squeeze(0)
        y = multiply(pattern, kept, z, bias, activation)
        ctx.pattern, ctx.slope, ctx.activation = pattern, slope, activation
        ctx.save_for_backward(source, target, z, weights, kept, y)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of the scores, of z and of the bias."""
        source, target, z, weights, kept, y = ctx.saved_tensors
        pattern: Pattern = ctx.pattern
        grad, grad_bias = grad.contiguous(), None
        if ctx.needs_input_grad[3]:
            grad, grad_bias = activate.backward(grad, y, ctx.activation)
        grad_source, grad_target = torch.zeros(2, *source.shape)
        grad_z = torch.zeros(z.shape)
        _gradient(
            pattern.crow.numpy(), pattern.column.numpy(), source.numpy(), target.numpy(),
            z.detach().contiguous().numpy(), weights.numpy(), kept.numpy(), grad.numpy(),
            ctx.slope, grad_source.numpy(), grad_target.numpy(), grad_z.numpy(),
        )  # fmt: skip
        grad_scores = torch.stack([grad_source.t(), grad_target.t()], -1)
        return None, grad_scores, grad_z, grad_bias, None, None, None, None


@njit(cache=True, nogil=True, error_model="numpy")
def _shifted_scores(crow: Any, column: Any, source: Any, target: Any, slope: float, scores: Any) -> None:
    """LeakyReLU of the scores, less the largest of the row."""
    leak = np.float32(slope)
    for trial in range(source.shape[0]):
        for row in range(target.shape[1]):
            largest = np.float32(-np.inf)
            for entry in range(crow[row], crow[row + 1]):
                score = source[trial, column[entry]] + target[trial, row]
                score = score if score > 0 else score * leak
                scores[trial, entry] = score
                largest = max(largest, score)
            for entry in range(crow[row], crow[row + 1]):
                scores[trial, entry] -= largest


@njit(cache=True, nogil=True, error_model="numpy")
def _normalise_rows(crow: Any, weights: Any) -> None:
    for trial in range(weights.shape[0]):
        for row in range(crow.shape[0] - 1):
            total = np.float32(0)
            for entry in range(crow[row], crow[row + 1]):
                total += weights[trial, entry]
            for entry in range(crow[row], crow[row + 1]):
                weights[trial, entry] /= total


@njit(cache=True, nogil=True, error_model="numpy", fastmath=FAST)
def _gradient(
    crow: Any, column: Any, source: Any, target: Any, z: Any, weights: Any, kept: Any, grad: Any,
    slope: float, grad_source: Any, grad_target: Any, grad_z: Any,
) -> None:  # fmt: skip
    rows, trials, features = grad.shape
    longest = 0
    for row in range(rows):
        longest = max(longest, crow[row + 1] - crow[row])
    inner = np.empty((longest, trials), np.float32)
    mean = np.empty(trials, np.float32)
    leak, one = np.float32(slope), np.float32(1)
    for row in range(rows):
        first, last = crow[row], crow[row + 1]
        mean[:] = 0
        for entry in range(first, last):
            other = column[entry]
            for trial in range(trials):
                value = kept[trial, entry]
                product = np.float32(0)
                if value != 0:
                    for feature in range(features):
                        product += grad[row, trial, feature] * z[other, trial, feature]
                        grad_z[other, trial, feature] += value * grad[row, trial, feature]
                # Through dropout: kept / weight is the factor that the weight was kept with.
                inner[entry - first, trial] = product * value
                mean[trial] += product * value
        for entry in range(first, last):
            other = column[entry]
            for trial in range(trials):
                change = inner[entry - first, trial] - weights[trial, entry] * mean[trial]
                if source[trial, other] + target[trial, row] <= 0:
                    change *= leak
                else:
                    change *= one
                grad_source[trial, other] += change
                grad_target[trial, row] += change
