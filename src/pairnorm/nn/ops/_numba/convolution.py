"""Graph convolutions in numba, one model after the other, so that a model's states stay in the cache."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pairnorm.nn.ops._numba import dropout, linear
from pairnorm.nn.ops._numba import vectors as vec
from pairnorm.nn.ops._numba.dropout import drop
from pairnorm.nn.ops._numba.pair_norm import gradient_in_one_thread, normalize_in_one_thread
from pairnorm.nn.ops._numba.sparse_product import activation_gradients, gather
from pairnorm.nn.ops.convolution import attention_reference, gcn_reference
from pairnorm.nn.ops.kernels import Saved
from pairnorm.nn.ops.pair_norm import Groups, in_double
from pairnorm.nn.ops.sparse_product import CODES

if TYPE_CHECKING:
    from pairnorm.nn.pair_norm import PairNorm

DTYPES, fits = linear.DTYPES, linear.fits
ZERO = np.float32(0)
NO_NORMS = torch.empty(0, 0), torch.empty(0, 0, dtype=torch.float64)


def gcn_forward(
    x: Tensor, weight: Tensor | None, bias: Tensor, matrix: Any, activation: str,
    norm: "PairNorm | None", rate: float, keys: Tensor | None, needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, out]`` and the tensors for the backward pass."""
    rows = vec.by_model(x.expand(-1, len(bias), -1))
    drops = dropout.drops_of(rows, rate, keys)
    x_dropped = dropout.dropped_memory(rows, drops)
    result, end = _layer_end_memory(norm, len(bias), matrix.num_rows, bias.size(1), needs_backward)
    is_huge = _gcn_forward(
        rows.numpy(), drops, x_dropped.numpy(), _weights(weight),
        np.empty((rows.size(1), bias.size(1)), np.float32), matrix.arrays, vec.array(bias),
        CODES[activation], *_scale_and_eps(norm), _arrays(end),
    )  # fmt: skip
    if is_huge:
        result = gcn_reference(x, weight, bias, matrix, activation, norm, rate, keys)
    return result, (x_dropped, *_saved_end(end, is_huge))


def gcn_backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor | None, Tensor | None, Tensor]:
    """Return the gradients of x, weight and bias."""
    (x_dropped, *end), (_, weight, bias) = saved, inputs
    matrix, activation, norm, rate, keys = settings
    (result, grad_x), grad_bias = vec.empty_by_model(*x_dropped.shape), vec.empty(bias.shape)
    grad_weight = None if weight is None else vec.empty(weight.shape)
    _gcn_backward(
        _layer_end_gradient(grads[0], norm, *end), _scale_and_eps(norm)[0], CODES[activation],
        matrix.transposed.arrays, x_dropped.numpy(), dropout.drops_of(x_dropped, rate, keys),
        _weights(None if weight is None else weight.transpose(1, 2)), needs_grad[0], grad_x.numpy(),
        _weights(grad_weight), grad_bias.numpy(),
    )  # fmt: skip
    return result if needs_grad[0] else None, grad_weight, grad_bias


def attention_forward(
    scores: Tensor, z: Tensor, bias: Tensor | None, matrix: Any, activation: str, negative_slope: float,
    rate: float, keys: Tensor | None, norm: "PairNorm | None", needs_backward: bool,
) -> tuple[Tensor, tuple[Tensor, ...]]:  # fmt: skip
    """Return ``[nodes, models, features]`` and the tensors for the backward pass: weights, never messages."""
    z_by_model, att_scores = vec.by_model(z), vec.by_model(scores)
    models, _, features = z_by_model.shape
    offset = np.zeros((models, features), np.float32) if bias is None else vec.array(bias)
    weights = vec.empty(models, 1, matrix.pattern.num_entries)
    drops = dropout.drops_of(weights, rate, keys)
    masked = dropout.dropped_memory(weights, drops)
    result, end = _layer_end_memory(norm, models, matrix.num_rows, features, needs_backward)
    is_huge = _attention_forward(
        matrix.pattern.arrays, att_scores.numpy(), np.float32(negative_slope), weights.numpy(), drops,
        masked.numpy(), z_by_model.numpy(), offset, CODES[activation], *_scale_and_eps(norm), _arrays(end),
    )  # fmt: skip
    if is_huge:
        result = attention_reference(scores, z, bias, matrix, activation, negative_slope, rate, keys, norm)
    return result, (att_scores, z_by_model, weights, masked, *_saved_end(end, is_huge))


def attention_backward(
    saved: Saved, inputs: Saved, settings: Saved, grads: Saved, needs_grad: tuple[bool, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the gradients of the scores, of z and of the bias."""
    att_scores, z, weights, masked, *end = saved
    matrix, activation, negative_slope, _, _, norm = settings
    grad_bias = vec.empty(len(z), z.size(2))
    (to_scores, grad_scores), (to_z, grad_z) = (vec.empty_by_model(*part.shape) for part in (att_scores, z))
    to_scores.zero_()
    to_z.zero_()
    _attention_backward(
        _layer_end_gradient(grads[0], norm, *end), _scale_and_eps(norm)[0], CODES[activation],
        matrix.pattern.arrays, att_scores.numpy(), z.numpy(), weights.numpy(), masked.numpy(),
        np.float32(negative_slope), grad_scores.numpy(), grad_z.numpy(), grad_bias.numpy(),
    )  # fmt: skip
    return to_scores, to_z, grad_bias if needs_grad[2] else None


def _weights(weight: Tensor | None) -> Any:
    """Return the array of a weight; an empty one stands for none."""
    return np.empty((0, 0, 0), np.float32) if weight is None else vec.array(weight)


def _arrays(tensors: Any) -> tuple[Any, ...]:
    return tuple(tensor.numpy() for tensor in tensors)


def _scale_and_eps(norm: "PairNorm | None") -> tuple[float, float]:
    return (1.0, 1.0) if norm is None else (norm.scale, norm.eps)


def _layer_end_memory(
    norm: "PairNorm | None", models: int, nodes: int, features: int, needs_backward: bool
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Return the result, and memory for h, y, norms and means; y = PairNorm(h), or h itself without one."""
    result, y = vec.empty_by_model(models, nodes, features)
    if norm is None:
        return result, (y, y, *NO_NORMS)
    h = vec.empty(y.shape) if needs_backward else y
    norms = vec.empty(models, nodes if norm.mode == "PN-SI" else 1)
    return result, (h, y, norms, torch.empty(models, features, dtype=torch.float64))


def _saved_end(end: tuple[Tensor, ...], is_huge: bool) -> tuple[Tensor, ...]:
    """Return h, norms and means for the backward pass, without norms where one is huge."""
    h, _, norms, means = end
    return h, norms[:, :0] if is_huge else norms, means


def _layer_end_gradient(
    grad: Tensor, norm: "PairNorm | None", h: Tensor, norms: Tensor, means: Tensor
) -> tuple[Any, ...]:
    """Return the arrays of the gradient, h, norms and means; huge norms, in float64, are done here."""
    if norm is not None and not norms.numel():
        settings = (Groups(h.size(1)), norm.scale, norm.eps, norm.mode)
        grad = in_double(h.transpose(0, 1), settings, grad)
    return _arrays((vec.by_model(grad), h, norms, means))


@vec.kernel
def _layer_end(model: int, scale: float, eps: float, end: Any) -> bool:
    """Normalize the states of a model, if there are norms; return whether one is huge."""
    h, y, norm, mean = end
    if not norm.shape[1]:
        return False
    one = slice(model, model + 1)
    states, result = h[one].transpose(1, 0, 2), y[one].transpose(1, 0, 2)
    return normalize_in_one_thread(states, scale, eps, result, norm[one], mean[one])


@vec.kernel
def _layer_end_backward(
    model: int, end: Any, scale: float, activation: int, result: Any, grad_bias: Any
) -> None:
    """Write the gradient of what the bias was added to, and its sum over the nodes."""
    grads, h, norm, mean = end
    one = slice(model, model + 1)
    grad = grads[one]
    if norm.shape[1]:
        states, inner = h[one].transpose(1, 0, 2), result.transpose(1, 0, 2)
        gradient_in_one_thread(grad.transpose(1, 0, 2), states, mean[one], norm[one], scale, inner)
        grad = result
    activation_gradients(grad[0], h[model], activation, result[0], grad_bias[one])


@vec.kernel
def _gcn_forward(
    x: Any, drops: Any, x_dropped: Any, weight: Any, z: Any, matrix: Any, bias: Any, activation: int,
    scale: float, eps: float, end: Any,
) -> bool:  # fmt: skip
    is_huge = False
    for model in range(len(x)):
        drop(x[model], drops, model, x_dropped[model])
        if len(weight):
            linear.product(x_dropped[model], weight[model], z)
        source = z if len(weight) else x[model]
        gather(matrix, source, bias[model : model + 1], activation, end[0][model])
        is_huge |= _layer_end(model, scale, eps, end)
    return is_huge


@vec.kernel
def _gcn_backward(
    end: Any, scale: float, activation: int, transposed: Any, x_dropped: Any, drops: Any, weight: Any,
    needs_grad_x: bool, grad_x: Any, grad_weight: Any, grad_bias: Any,
) -> None:  # fmt: skip
    models, nodes, width = end[1].shape
    inner, grad_z = np.empty((1, nodes, width), np.float32), np.empty((grad_x.shape[1], width), np.float32)
    none = np.zeros((1, width), np.float32)
    for model in range(models):
        _layer_end_backward(model, end, scale, activation, inner, grad_bias)
        gather(transposed, inner[0], none, 0, grad_z if len(weight) else grad_x[model])
        if len(weight):
            linear.transposed_product(x_dropped[model], grad_z, grad_weight[model])
        if len(weight) and needs_grad_x:
            linear.product(grad_z, weight[model], grad_x[model])
            drop(grad_x[model], drops, model, grad_x[model])


@vec.kernel
def _attention_forward(
    pattern: Any, att_scores: Any, negative_slope: Any, weights: Any, drops: Any, masked: Any, z: Any,
    bias: Any, activation: int, scale: float, eps: float, end: Any,
) -> bool:  # fmt: skip
    is_huge = False
    crow, column = pattern
    for model in range(len(z)):
        _softmax(crow, column, att_scores[model], negative_slope, weights[model])
        drop(weights[model], drops, model, masked[model])
        matrix = (crow, column, masked[model, 0])
        gather(matrix, z[model], bias[model : model + 1], activation, end[0][model])
        is_huge |= _layer_end(model, scale, eps, end)
    return is_huge


@vec.kernel
def _softmax(crow: Any, column: Any, att_scores: Any, negative_slope: Any, weights: Any) -> None:
    """Write the softmax of the scores within every row to ``weights`` ``[1, entries]``."""
    for row in range(len(crow) - 1):
        largest = np.float32(-np.inf)
        for entry in range(crow[row], crow[row + 1]):
            score = att_scores[column[entry], 0] + att_scores[row, 1]
            score = score if score > 0 else score * negative_slope
            weights[0, entry] = score
            largest = score if score > largest else largest
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] -= largest
    for start in range(0, weights.shape[1], vec.LANES):
        vec.store(weights, 0, start, vec.exp(vec.load(weights, 0, start)))
    for row in range(len(crow) - 1):
        total_weight = ZERO
        for entry in range(crow[row], crow[row + 1]):
            total_weight += weights[0, entry]
        share = np.float32(1) / total_weight
        for entry in range(crow[row], crow[row + 1]):
            weights[0, entry] *= share


@vec.kernel
def _attention_backward(
    end: Any, scale: float, activation: int, pattern: Any, att_scores: Any, z: Any, weights: Any, masked: Any,
    negative_slope: Any, grad_scores: Any, grad_z: Any, grad_bias: Any,
) -> None:  # fmt: skip
    (crow, column), (models, nodes, width) = pattern, end[1].shape
    inner, grad_dots = np.empty((1, nodes, width), np.float32), np.empty(len(column), np.float32)
    for model in range(models):
        _layer_end_backward(model, end, scale, activation, inner, grad_bias)
        _through_average(crow, column, masked[model, 0], z[model], inner[0], grad_dots, grad_z[model])
        scores, weight = att_scores[model], weights[model, 0]
        _through_softmax(crow, column, scores, weight, negative_slope, grad_dots, grad_scores[model])


@vec.kernel
def _through_average(
    crow: Any, column: Any, masked: Any, z: Any, grad: Any, grad_dots: Any, grad_z: Any
) -> None:
    """Add to ``grad_z`` the gradient through the weighted mean; ``grad_dots`` is dL/dweight · weight."""
    for row in range(len(grad)):
        for entry in range(crow[row], crow[row + 1]):
            value, other = masked[entry], column[entry]
            grad_dots[entry] = ZERO
            if value != 0:
                product = vec.fill(ZERO)
                for start in range(0, grad.shape[1], vec.LANES):
                    gradient = vec.load(grad, row, start)
                    product = product + gradient * vec.load(z, other, start)
                    vec.store(grad_z, other, start, vec.load(grad_z, other, start) + gradient * value)
                grad_dots[entry] = vec.total(product) * value


@vec.kernel
def _through_softmax(
    crow: Any, column: Any, att_scores: Any, weights: Any, negative_slope: Any, grad_dots: Any,
    grad_scores: Any,
) -> None:  # fmt: skip
    """Add to ``grad_scores`` the gradient through the softmax of attention weights."""
    for row in range(len(crow) - 1):
        mean = ZERO
        for entry in range(crow[row], crow[row + 1]):
            mean += grad_dots[entry]
        total_weight = ZERO
        for entry in range(crow[row], crow[row + 1]):
            other = column[entry]
            change = grad_dots[entry] - weights[entry] * mean
            change = change if att_scores[other, 0] + att_scores[row, 1] > 0 else change * negative_slope
            grad_scores[other, 0] += change
            total_weight += change
        grad_scores[row, 1] += total_weight
