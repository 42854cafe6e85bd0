"""Baselines from other papers: Correct and Smooth, and FSD-CAP."""

from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from pairnorm.data import Graph
from pairnorm.data.adjacency import hops
from pairnorm.nn import SparseMatrix, normalized_adjacency
from pairnorm.nn.ops.sparse_product import Pattern
from pairnorm.nn.propagate import degrees, propagate_with_restart
from pairnorm.train import Spec, fit

# Settings of the released code, which states them for Cora only.
GAMMA, MEMORY, STEPS, TEMPERATURE = 1.2, 0.2, 200, 1000.0
CORRECTION_STEPS, ALPHAS = 50, (0.5, 0.8, 0.95, 0.99)


def correct_and_smooth(
    matrix: SparseMatrix, probabilities: Tensor, labels: Tensor, known: Tensor, correct: float, smooth: float
) -> Tensor:
    r"""Refine predicted probabilities by Correct and Smooth (Huang et al., 2021).

    Propagates the errors of labeled nodes, corrects predictions by them at their mean size, then smooths.

    $$
    \mathbf{E} \leftarrow \alpha_1 \mathbf{S E} + (1 - \alpha_1) \mathbf{E}_0, \qquad
    \mathbf{Z}_i = \mathbf{P}_i + \sigma \mathbf{E}_i / \|\mathbf{E}_i\|_1, \qquad
    \mathbf{Z} \leftarrow \alpha_2 \mathbf{S Z} + (1 - \alpha_2) \mathbf{Z}_0
    $$

    Args:
        matrix: S, ``normalized_adjacency(adjacency, "sym")``.
        probabilities: P, [n, classes].
        labels: int64 [n]; only those of known nodes are used.
        known: bool [n].
        correct: alpha of the first propagation.
        smooth: alpha of the second.
    """
    truth = one_hot(labels[known], probabilities.size(1)).to(probabilities)
    errors = torch.zeros_like(probabilities)
    errors[known] = truth - probabilities[known]
    propagated = propagate_with_restart(matrix, errors, [correct], CORRECTION_STEPS, (-1, 1)).squeeze(1)
    scale = errors[known].abs().sum() / len(truth) / propagated.abs().sum(1, keepdim=True)
    scale = torch.where(scale.isinf() | (scale > 1000), 1, scale)  # almost nothing arrived
    corrected = (probabilities + scale * propagated).index_put((known,), truth)
    return propagate_with_restart(matrix, corrected, [smooth], CORRECTION_STEPS, (0, 1)).squeeze(1)


def tuned_correct_and_smooth(graph: Graph, probabilities: Tensor) -> Tensor:
    """Correct and smooth with the two alphas that have the highest validation accuracy."""
    matrix = normalized_adjacency(graph.adjacency, "sym")
    smoothed = [
        correct_and_smooth(matrix, probabilities, graph.labels, graph.train, *alphas)
        for alphas in product(ALPHAS, repeat=2)
    ]
    right = [int((probs.argmax(1) == graph.labels)[graph.validation].sum()) for probs in smoothed]
    best = smoothed[right.index(max(right))]
    return best / best.sum(1, keepdim=True).clamp(min=1e-12)


@torch.no_grad()
def fsd_cap(graph: Graph, spec: Spec, seed: int, *, validation_labels: bool) -> Tensor:
    """Return the class probabilities [n, classes] of a model that learns from imputed features.

    One model is trained on the diffused features and predicts the classes whose means are mixed in; another
    is trained on the result. The authors use the confidence of the first after its last epoch, here it is
    that of the best epoch by validation; at their temperature both are nearly 1 / classes.

    Args:
        graph: dense features, whole vectors missing; with a split.
        validation_labels: whether the class of a validation node is its label, as in the released code, or
            what the first model predicts, as that of a test node is.
    """
    known = ~graph.missing
    diffused = subgraph_diffusion(graph.adjacency, graph.features, known)
    logits = _fit_logits(graph, diffused, spec, seed)
    trained_on = graph.train | graph.validation if validation_labels else graph.train
    classes = torch.where(trained_on, graph.labels, logits.argmax(1))
    confidence = (logits / TEMPERATURE).softmax(1).amax(1)
    mixed = class_aware(graph.adjacency, diffused, classes, confidence)
    imputed = torch.where(known.unsqueeze(1), diffused, mixed)
    return _fit_logits(graph, imputed, spec, seed).softmax(1)


def _fit_logits(graph: Graph, features: Tensor, spec: Spec, seed: int) -> Tensor:
    if 4 * features.count_nonzero() < features.numel():  # columns that no known vector has stay empty
        features = features.to_sparse_csr()
    complete = graph.replace(features=features, missing=torch.zeros_like(graph.missing))
    with torch.enable_grad():
        model = fit(complete, spec, [seed], "cpu")
    logits: Tensor = model(features, graph.adjacency)
    return logits.squeeze(1)


def subgraph_diffusion(
    adjacency: Tensor,
    features: Tensor,
    known: Tensor,
    *,
    gamma: float = GAMMA,
    memory: float = MEMORY,
    steps: int = STEPS,
) -> Tensor:
    r"""Diffuse the known vectors over a subgraph, then over a larger one, until it has all nodes in reach.

    $$
    \mathcal{V}_h = \{ i : \mathrm{dist}(i, \mathcal{V}_{h-1}) \le h \}, \qquad
    \mathbf{X} \leftarrow \mathbf{M} \circ \mathbf{X}_0 +
    (1 - \mathbf{M}) \circ (\mathbf{Q}_h \mathbf{X} + \lambda \bar{\mathbf{X}}_{h-1}), \qquad
    \bar{\mathbf{X}}_h = \mathbf{X} / \|\mathbf{X}\|_F
    $$

    Args:
        adjacency: sparse [n, n], without weights.
        features: [n, d]; only those of known nodes are used.
        known: bool [n], $\mathcal{V}_0$ and M.
        memory: λ, how much of the subgraph before is added at every step.
    """
    pattern, away = normalized_adjacency(adjacency).pattern, torch.from_numpy(hops(adjacency, known.numpy()))
    # Up to a factor all is linear in the known vectors: their coordinates in an orthonormal basis suffice.
    # Few known vectors have few coordinates, and the norm stays the same.
    basis, coordinates = torch.linalg.qr(features[known].t())
    start = features.new_zeros(len(features), basis.size(1))
    start[known] = coordinates.t()
    state = previous = start
    last, inside, reach, number = torch.zeros_like(known), known, 0, 0
    while not torch.equal(last, inside):
        number += 1
        reach += number  # of the first subgraph 1, of the second 2 hops more, ...
        last, inside = inside, (away >= 0) & (away <= reach)
        matrix = fractional(pattern, inside, gamma, features.dtype)
        for _ in range(steps):
            state = torch.where(known.unsqueeze(1), start, (matrix @ state).add_(previous, alpha=memory))
        previous = state / state.norm().clamp(min=torch.finfo(state.dtype).tiny)
    return torch.where(known.unsqueeze(1), features, state @ basis.t())


def fractional(pattern: Pattern, inside: Tensor, gamma: float, dtype: torch.dtype) -> SparseMatrix:
    r"""Raise the symmetric adjacency of a subgraph to a power, entry by entry, and normalize its rows.

    $$
    q_{ij} = \frac{\hat{a}_{ij}^\gamma}{\sum_k \hat{a}_{ik}^\gamma}
    = \frac{d_j^{-\gamma/2}}{\sum_{k \in \mathcal{N}(i)} d_k^{-\gamma/2}}, \qquad
    \hat{a}_{ij} = (d_i d_j)^{-1/2}
    $$

    Args:
        pattern: the edges of the whole graph, self-loops included.
        inside: bool [n], the nodes of the subgraph; other rows and columns are zero.
        gamma: the power.
        dtype: of the result.
    """
    row, column = pattern.row.long(), pattern.column.long()
    joined = (inside[row] & inside[column]).to(dtype)
    empty = joined.new_zeros(len(inside))
    weight = joined * empty.index_add(0, row, joined).clamp(min=1)[column] ** (-gamma / 2)
    total = empty.index_add(0, row, weight)
    return SparseMatrix(pattern, weight / torch.where(inside, total, 1)[row])


def class_aware(adjacency: Tensor, features: Tensor, classes: Tensor, confidence: Tensor) -> Tensor:
    r"""Mix each vector with the mean of its class, weighted by the homophily of its members.

    $$
    \tilde{\mathbf{x}}_i = c_i \mathbf{x}_i + (1 - c_i)\, \mathbf{m}_{y_i}, \qquad
    \mathbf{m}_y = \frac{\sum_{j : y_j = y} w_j \mathbf{x}_j}{\sum_{j : y_j = y} w_j}, \qquad
    w_j = 1 + \frac{1}{\log d_j} \sum_y p_{jy} \log p_{jy}
    $$

    Args:
        adjacency: sparse [n, n], without weights.
        features: [n, d], without gaps.
        classes: int64 [n], y; of node j and its neighbors, together $d_j$, the share $p_{jy}$ is in class y.
        confidence: [n], c.
    """
    members = one_hot(classes).to(features.dtype)
    entropy = torch.special.entr(normalized_adjacency(adjacency) @ members).sum(1)
    tiny = torch.finfo(features.dtype).tiny
    weight = 1 - entropy / degrees(adjacency).to(features).log().clamp(min=tiny)
    weighted = members * weight.unsqueeze(1)
    means: Tensor = (weighted.t() @ features) / weighted.sum(0).clamp(min=tiny).unsqueeze(1)
    confidence = confidence.unsqueeze(1)
    return confidence * features + (1 - confidence) * means[classes]
