from math import inf, nan

import torch

from pairnorm.measure.summary import Record, form_verdict


def record(layer, angle=1.0, rank=3.0, response=None, *, forward=0, kind="", nodes=5, norm=1.0):
    measures = {"mean_average_distance": torch.tensor([angle]), "numerical_rank": torch.tensor([rank])}
    if response is not None:
        measures["gradient_norm"] = torch.tensor([response])
    return Record(forward, layer, f"conv{layer}", kind, nodes, torch.tensor([norm]), measures, {})


def test_states_collapse_where_they_stay_so_to_the_last_but_one():
    angles = [1.0, 0.01, 1.0, 0.04, 0.01, 1.0]  # the last layer gives the logits
    verdict = form_verdict([record(layer, angle) for layer, angle in enumerate(angles, 1)])
    assert (verdict.kind, verdict.layer) == ("states-collapse", 4)
    assert "(conv4) on, all nodes point the same way (mean average distance 0.04)" in verdict.text
    assert form_verdict([record(1, 0.01), record(2), record(3)]).kind == "no-sign"


def test_the_node_type_that_collapsed_is_named():
    for order in (["author", "paper"], ["paper", "author"]):
        found = [record(layer, rank=1.0 if kind == "author" else 3.0, kind=kind)
                 for layer in (1, 2) for kind in order]  # fmt: skip
        verdict = form_verdict(found)
        assert "(conv1, author) on, all nodes lie on one line (numerical rank 1)" in verdict.text


def test_the_last_forward_pass_counts():
    assert (
        form_verdict([record(1, 0.01), record(2, 0.01), record(1, forward=1), record(2, forward=1)]).layer
        is None
    )


def test_gradients_vanish_up_to_the_last_weak_layer():
    responses = [1e-9, 1e-5, 0.5, 1.0]
    verdict = form_verdict([record(layer, response=response) for layer, response in enumerate(responses, 1)])
    assert (verdict.kind, verdict.layer) == ("gradients-vanish", 2)


def test_what_is_not_finite_comes_first_states_from_the_front_and_gradients_from_the_end():
    states = [record(1, 0.01), record(2, nan, nan, nan, norm=inf), record(3, nan, nan, nan, norm=nan)]
    assert form_verdict(states)[:2] == ("not-finite", 2)
    verdict = form_verdict(
        [record(layer, response=response) for layer, response in enumerate([nan, inf, 1.0], 1)]
    )
    assert verdict == ("not-finite", 2, "Gradients are not finite from layer 2 (conv2) down.")


def test_a_single_node_shows_nothing():
    for nodes in (0, 1):
        verdict = form_verdict([record(layer, 0.0, 1.0, nodes=nodes) for layer in (1, 2)])
        assert verdict.kind == "no-sign"
        assert "fewer than two nodes" in verdict.text
