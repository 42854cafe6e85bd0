from dataclasses import replace

import numpy as np
import torch

from pairnorm.classify.candidates import Average, LabelPropagation, LogisticRegression, ensemble
from pairnorm.classify.candidates.ensemble import select_smoothing, sharpen, smooth
from pairnorm.classify.search import search

CPU = torch.device("cpu")


def test_smooth_solves_its_fixed_point(task):
    """Against a dense solution of Z = α S Z + (1 - α) Z₀, with known labels in place of predictions."""
    graph, alpha = task.graph, 0.5
    labels = graph.labels.where(graph.train, -1)
    probabilities = torch.rand(300, 2, generator=torch.Generator().manual_seed(0))
    adjacency = graph.adjacency.to_dense().double() + torch.eye(300)
    root = adjacency.sum(1).rsqrt()
    start = probabilities.double()
    start[graph.train] = torch.nn.functional.one_hot(labels[graph.train], 2).double()
    matrix = torch.eye(300) - alpha * root[:, None] * adjacency * root
    expected = torch.linalg.solve(matrix, (1 - alpha) * start)
    result = smooth(task.prepared, probabilities, labels, [0.9, alpha])[:, 1]
    torch.testing.assert_close(
        result.double(), expected / expected.sum(1, keepdim=True), atol=1e-5, rtol=1e-4
    )
    assert torch.equal(result.argmax(1), sharpen(result, 3.0).argmax(1))


def test_smoothing_is_selected_if_it_lowers_the_loss(task):
    """Features alone are weakly informative; those of neighbors add information."""
    families = [LogisticRegression((3.0,)), LogisticRegression((10.0,))]
    assert search(task, families).smooths == (None,)
    choice = search(task, families, simple=False)
    assert choice.smooths[0] is not None
    plain = choice._replace(smooths=(None,)).fit(task)
    held, truth = task.graph.validation, task.held_out_labels

    def loss(model: Average) -> float:
        logits = model.logits(task.prepared)[held, 0]
        return float(torch.nn.functional.cross_entropy(logits, truth))

    assert loss(choice.fit(task)) < loss(plain) - 0.01
    assert np.isclose(loss(choice.fit(task)), choice.best.validation_loss, rtol=1e-4)
    again = choice.fit(task)
    assert np.isclose(loss(again), choice.best.validation_loss, rtol=1e-4)


def test_unreachable_nodes_are_not_smoothed(task):
    choice = search(task, [LogisticRegression((3.0,)), LogisticRegression((10.0,))], simple=False)
    average = choice._replace(smooths=(None,)).fit(task)
    plain = average.logits(task.prepared).softmax(-1)[task.graph.validation, 0]
    unreachable = torch.arange(len(plain)) < 10
    again = replace(task)
    again.__dict__["held_out_unreachable"] = unreachable
    setting, result = select_smoothing(again, [average])
    assert setting is not None
    torch.testing.assert_close(result[unreachable], plain[unreachable])
    assert not torch.allclose(result[~unreachable], plain[~unreachable], atol=0.01)


def test_single_family_is_not_smoothed(task):
    assert search(task, [LabelPropagation()], simple=False).smooths == (None,)


def test_smoothing_of_a_fold_excludes_held_out_labels(task, monkeypatch):
    nodes = task.graph.train | task.graph.validation
    masks = [nodes & (torch.arange(300) % 3 == number) for number in range(3)]
    folded, seen = replace(task, fold_masks=masks), []

    def record(prepared: object, probabilities: object, labels: torch.Tensor, alphas: object) -> torch.Tensor:
        seen.append(labels)
        return smooth(prepared, probabilities, labels, alphas)

    monkeypatch.setattr(ensemble, "smooth", record)
    search(folded, [LogisticRegression((3.0,)), LabelPropagation()], simple=False)
    for held_out, labels in zip(masks, seen, strict=True):
        assert torch.equal(labels >= 0, nodes & ~held_out)
