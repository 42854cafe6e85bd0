import copy

import pandas
import pytest
import torch
import torch_geometric.nn as pyg
from torch import nn
from torch.utils.checkpoint import checkpoint

from pairnorm.base.errors import PairNormError
from pairnorm.measure import (
    Probe,
    apd,
    apsd,
    col_diff,
    collapse,
    connected_pairs,
    dirichlet_energy,
    pair_distances,
    row_diff,
    tpsd,
)
from pairnorm.measure import probe as record_module
from pairnorm.measure.collapse import Measures
from pairnorm.measure.diagnosis import SCALE_FREE
from pairnorm.nn import GCN, SGC, PairNorm
from pairnorm.nn.patch import add_pair_norm

PAPER = ("row_diff", "col_diff", "apd", "apsd")


def record(model, *inputs, measures=PAPER, **settings):
    """Run a model once under a Probe; return the Probe and the output."""
    with Probe(model, measures, **settings) as probe:
        output = model(*inputs)
    return probe, output


def test_each_name_gives_its_measure(adjacency):
    x = torch.randn(40, 2, 3)
    pairs = {"connected": torch.tensor([[0, 1], [2, 3]]), "mine": torch.tensor([[4], [9]])}
    names = ["row_diff", "col_diff", "apd", "apsd", "tpsd", "dirichlet_energy"]
    values = Measures(names, sample=10, seed=0)(x, pairs, adjacency)
    expected = {
        "row_diff": row_diff(x),
        "col_diff": col_diff(x),
        "apd_connected": apd(x, pairs["connected"]),
        "apd_mine": apd(x, pairs["mine"]),
        "apsd_connected": apsd(x, pairs["connected"]),
        "apsd_mine": apsd(x, pairs["mine"]),
        "apsd_random": tpsd(x) / 40**2,
        "tpsd": tpsd(x),
        "dirichlet_energy": dirichlet_energy(x, adjacency),
    }
    assert list(values) == list(expected)
    torch.testing.assert_close(values, expected)


def test_large_states_are_sampled_with_an_error(monkeypatch):
    monkeypatch.setattr(collapse, "EXACT_WORK", 60**2 * 20)
    take = Measures(["row_diff", "col_diff"], sample=500, seed=0)
    within = take(torch.randn(60, 20), {}, None)
    assert list(within) == ["row_diff", "col_diff"]
    x = torch.randn(61, 20)
    tall = take(x, {}, None)
    assert list(tall) == ["row_diff", "row_diff_standard_error", "col_diff"]
    assert 0 < (tall["row_diff"] - row_diff(x)).abs() < 4 * tall["row_diff_standard_error"]
    wide = take(x.T, {}, None)
    assert list(wide) == ["row_diff", "col_diff", "col_diff_standard_error"]
    assert 0 < (wide["col_diff"] - col_diff(x.T)).abs() < 4 * wide["col_diff_standard_error"]


@pytest.mark.parametrize(
    ("measures", "sample", "code", "value"),
    [
        *[(names, 10, "wrong-type", names) for names in ("row_diff", [], {})],
        (["rowdiff"], 10, "unknown-choice", "rowdiff"),
        (["tpsd"], 1, "not-a-whole-number", 1),
    ],
)
def test_invalid_measures_raise(raises, measures, sample, code, value):
    with raises(code, value=value):
        Measures(measures, sample=sample, seed=0)


def test_energy_without_graph_raises_with_hint(raises):
    with raises("no-graph", value="dirichlet_energy"):
        Measures(["dirichlet_energy"], sample=10, seed=0)(torch.randn(3, 2), {}, None)


def test_own_measures_give_one_value_per_trial(raises):
    x = torch.randn(5, 2, 3)
    own = Measures({"largest": lambda states: states.amax((0, -1))}, sample=10, seed=0)
    torch.testing.assert_close(own(x, {}, None)["largest"], x.amax((0, 2)))
    with raises("wrong-shape", value=[]):
        Measures({"sum": torch.sum}, sample=10, seed=0)(x, {}, None)


class Convolution(nn.Module):
    is_graph_convolution = True

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x, adjacency):
        return self.linear(adjacency @ x)


class Network(nn.Module):
    """Two convolutions, the second called twice."""

    def __init__(self, fail=False):
        super().__init__()
        self.first = Convolution()
        self.second = Convolution()
        self.fail = fail

    def forward(self, x, adjacency):
        x = self.first(x, adjacency).relu()
        if self.fail:
            raise RuntimeError("broken")
        x = self.second(x, adjacency).relu()
        return self.second(x, adjacency)


class Stack(nn.Module):
    """Convolutions, checkpointed or not, and what happens between them."""

    def __init__(self, depth, between=None, kind=Convolution, use_reentrant=None):
        super().__init__()
        self.convolutions = nn.ModuleList(kind() for _ in range(depth))
        self.between, self.use_reentrant = between or nn.Identity(), use_reentrant

    def forward(self, x, adjacency):
        for convolution in self.convolutions:
            if self.use_reentrant is None:
                x = self.between(convolution(x, adjacency))
            else:
                x = self.between(checkpoint(convolution, x, adjacency, use_reentrant=self.use_reentrant))
        return x


def propagation(depth, between=None):
    """Return convolutions without weights."""
    model = Stack(depth, between)
    for convolution in model.convolutions:
        nn.init.eye_(convolution.linear.weight)
        nn.init.zeros_(convolution.linear.bias)
    return model


@pytest.fixture
def graph(adjacency):
    return adjacency.to_sparse_csr()


@pytest.fixture
def edge_index(adjacency):
    return adjacency.nonzero().T


def number_of_hooks(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_one_row_per_call_with_the_measures_of_its_output(graph):
    model, x = Network(), torch.randn(40, 4)
    probe, output = record(model, x, graph)
    frame = probe.frame()
    assert frame["name"].tolist() == ["first", "second", "second"]
    assert frame["layer"].tolist() == [1, 2, 3]
    assert list(frame.columns) == [
        *("forward", "layer", "name", "trial", "row_diff", "col_diff"),
        *("apd_connected", "apsd_connected", "apsd_random"),
    ]
    states = [model.first(x, graph)]
    states += [model.second(states[0].relu(), graph), output]
    pairs = connected_pairs(graph)
    for row, state in zip(frame.itertuples(), states, strict=True):
        assert row.row_diff == pytest.approx(float(row_diff(state)))
        assert row.apd_connected == pytest.approx(float(apd(state, pairs)))
        assert row.apsd_connected == pytest.approx(float(apsd(state, pairs)))
        assert row.apsd_random == pytest.approx(float(tpsd(state)) / 40**2)


def test_probe_leaves_the_model_unchanged(graph):
    model, x = Network(), torch.randn(40, 4, requires_grad=True)
    twin = copy.deepcopy(model)
    expected = twin(x, graph)
    random_state = torch.get_rng_state()
    with Probe(model, PAPER) as probe:
        output = model(x, graph)
        assert number_of_hooks(model) > 0
    assert torch.equal(output, expected)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert number_of_hooks(model) == 0
    assert not any(
        v.requires_grad for r in probe.records for v in [*r.measures.values(), *r.distances.values()]
    )
    output.sum().backward()
    expected.sum().backward()
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(own.grad, other.grad)


def test_exception_removes_hooks_and_keeps_records(graph):
    model = Network(fail=True)
    probe = Probe(model, PAPER)
    with pytest.raises(RuntimeError, match="broken"), probe:
        model(torch.randn(40, 4), graph)
    assert number_of_hooks(model) == 0
    assert [record.name for record in probe.records] == ["first"]


def test_later_passes_append_records(graph):
    model, x = Network(), torch.randn(40, 4)
    with Probe(model, PAPER) as probe:
        model(x, graph)
        model(2 * x, graph)
    model(x, graph)
    with probe:
        model(3 * x, graph)
    frame = probe.frame()
    assert frame["forward"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert frame["layer"].tolist() == [1, 2, 3] * 3


def test_nested_recording_raises(raises, graph):
    probe = Probe(Network())
    with probe, raises("already-recording"):
        probe.__enter__()
    assert repr(probe) == "Probe(Network, 2 convolutions, 0 records)"


def test_trials_become_rows(graph):
    model = GCN(5, 3, num_layers=3, hidden_channels=6, num_models=2).eval()
    x = torch.randn(40, 5)
    probe, output = record(model, x, graph, measures=["row_diff", "tpsd"])
    frame = probe.frame()
    assert frame["trial"].tolist() == [0, 1] * 3
    assert frame["row_diff"].tolist()[-2:] == pytest.approx(row_diff(output).tolist())
    assert frame["tpsd"].tolist()[-2:] == pytest.approx(tpsd(output).tolist())


@pytest.mark.parametrize(("mode", "constant"), [(None, False), ("PN", True)])
def test_pair_norm_keeps_the_distances_of_sgc_constant(graph, mode, constant):
    model = SGC(5, 3, num_layers=8, norm=mode, scale=3.0).eval()
    probe, _ = record(model, torch.randn(40, 5), graph)
    values = probe.frame()["apsd_random"].tolist()
    assert len(values) == 8
    if constant:
        assert values == pytest.approx([2 * 3.0**2] * 8, rel=1e-4)  # TPSD = 2 n² s²
    else:
        assert values == sorted(values, reverse=True)


def test_patched_model_shows_its_normalized_states(edge_index):
    model, x = pyg.GCN(5, 6, 4, 3).eval(), torch.randn(40, 5)
    with add_pair_norm(model, scale=2.0, mode="PN"), Probe(model, PAPER) as probe:
        output = model(x, edge_index)
    frame = probe.frame()
    assert frame["name"].tolist() == [f"convs.{i}" for i in range(4)]
    assert frame["apsd_random"].tolist()[:3] == pytest.approx([8.0] * 3, rel=1e-4)
    assert frame["apsd_random"].iloc[3] == pytest.approx(float(tpsd(output)) / 40**2)
    assert number_of_hooks(model) == 0


def test_patched_norm_is_recorded_in_its_own_layer(graph):
    class Activated(Convolution):
        def forward(self, x, adjacency):
            return super().forward(x, adjacency).tanh()

    for model in (Stack(3), Stack(3, kind=Activated)):
        with add_pair_norm(model, mode="PN"), Probe(model, PAPER) as probe:
            model(torch.randn(40, 4), graph)
        values = probe.frame()["apsd_random"].tolist()
        assert values[:2] == pytest.approx([2.0, 2.0], rel=1e-3)
        assert values[2] != pytest.approx(2.0, rel=1e-2)


def test_observed_pass_of_a_patch_is_not_recorded(graph):
    class Reversed(Network):
        """The convolution registered first is the last to run, which the patch learns from the first pass."""

        def forward(self, x, adjacency):
            return self.first(self.second(x, adjacency).relu(), adjacency)

    model, x = Reversed(), torch.randn(40, 4)
    with add_pair_norm(model, mode="PN"), Probe(model, measures=["apsd"]) as probe:
        for _ in range(2):
            output = model(x, graph)
    frame = probe.frame()
    assert frame["name"].tolist() == ["second", "first"] * 2
    assert frame["layer"].tolist() == [1, 2] * 2
    expected = [2.0, float(tpsd(output)) / 40**2] * 2
    assert frame["apsd_random"].tolist() == pytest.approx(expected, rel=1e-3)


def test_norms_on_other_states_are_ignored(graph):
    class Odd(Network):
        def __init__(self):
            super().__init__()
            self.norm = PairNorm()

        def forward(self, x, adjacency):
            self.norm(x)
            x = self.first(x, adjacency)
            self.norm(x[:7])
            return x

    model, x = Odd(), torch.randn(40, 4)
    probe, output = record(model, x, graph, measures=["tpsd"])
    assert probe.frame()["tpsd"].tolist() == pytest.approx([float(tpsd(output))])


@pytest.mark.parametrize("name", ["GCN", "GAT", "GraphSAGE", "GIN"])
def test_pyg_models_are_recorded(name, edge_index):
    model = getattr(pyg, name)(5, 6, 3, 2).eval()
    x = torch.randn(40, 5)
    probe, output = record(model, x, edge_index)
    frame = probe.frame()
    assert len(frame) == 3
    assert frame["row_diff"].iloc[-1] == pytest.approx(float(row_diff(output)))
    assert frame["apd_connected"].iloc[-1] == pytest.approx(float(apd(output, connected_pairs(edge_index))))


def test_graph_comes_from_argument_convolution_or_model(graph, adjacency):
    model, x = Network(), torch.randn(40, 4)
    for given, seen in ((None, graph), (adjacency.triu().roll(1, 0), adjacency.triu().roll(1, 0))):
        probe, output = record(model, x, graph, adjacency=given)
        expected = float(apd(output, connected_pairs(seen)))
        assert probe.frame()["apd_connected"].iloc[-1] == pytest.approx(expected)


def test_square_features_are_not_a_graph(graph):
    model = GCN(40, 3, num_layers=2, hidden_channels=4).eval()
    one_hot = torch.eye(40).to_sparse_csr()
    probe, output = record(model, one_hot, graph, measures=["apd"])
    expected = float(apd(output, connected_pairs(graph)))
    assert probe.frame()["apd_connected"].iloc[-1] == pytest.approx(expected)


def test_dropout_keys_are_not_a_graph(graph):
    model = GCN(5, 3, num_layers=2, hidden_channels=4, num_models=2).train()
    probe, output = record(model, torch.randn(40, 5), graph, measures=["apd"])
    expected = apd(output, connected_pairs(graph)).tolist()
    assert probe.frame()["apd_connected"].tolist()[-2:] == pytest.approx(expected)


def test_no_graph_or_edges_gives_no_connected_pairs():
    class Mean(nn.Module):
        is_graph_convolution = True

        def forward(self, x, adjacency):
            return x

    model = nn.ModuleDict({"convolution": Mean()})
    model.forward = model["convolution"].forward
    for graph in (torch.zeros(5, 5).to_sparse_csr(), torch.eye(5), torch.tensor([[0], [9]])):
        with Probe(model, PAPER, layers=["convolution"], histograms=True) as probe:
            model["convolution"](torch.randn(5, 2), graph)
        assert "apd_connected" not in probe.frame()
        assert set(probe.records[0].distances) == {"random"}


def test_energy_uses_given_weights_or_unweighted_graph(graph, adjacency):
    model, x = Network(), torch.randn(40, 4)
    weighted = adjacency * 5
    for given, expected in ((None, adjacency), (weighted, weighted)):
        probe, output = record(model, x, graph, measures=["dirichlet_energy"], adjacency=given)
        value = probe.frame()["dirichlet_energy"].iloc[-1]
        assert value == pytest.approx(float(dirichlet_energy(output, expected)))


def test_own_pairs_are_measured_by_name(raises, graph):
    model, x = Network(), torch.randn(40, 4)
    pairs = torch.tensor([[0, 1, 2], [7, 8, 9]])
    for given, name in ((pairs, "given"), ({"same_class": pairs}, "same_class")):
        probe, output = record(model, x, graph, pairs=given, histograms=True)
        assert probe.frame()[f"apsd_{name}"].iloc[-1] == pytest.approx(float(apsd(output, pairs)))
        torch.testing.assert_close(probe.records[-1].distances[name], pair_distances(output, pairs).detach())
    with raises("name-taken", value="random"):
        Probe(model, PAPER, pairs={"random": pairs})


def test_distances_of_a_sample_are_recorded_by_kind(graph):
    model = Network()
    probe, output = record(model, torch.randn(40, 4), graph, sample=20, histograms=True)
    kept = probe.records[-1].distances
    assert {kind: len(values) for kind, values in kept.items()} == {"connected": 20, "random": 20}
    every = pair_distances(output, connected_pairs(graph))
    assert all(bool((every == value).any()) for value in kept["connected"])


class Pages:
    """A SummaryWriter that keeps what it is given."""

    def __init__(self):
        self.scalars, self.histograms = {}, {}

    def add_scalar(self, tag, scalar_value, global_step=None):
        self.scalars[tag, global_step] = scalar_value

    def add_histogram(self, tag, values, global_step=None):
        self.histograms[tag, global_step] = values


def test_tensorboard_gets_the_last_forward_by_layer_or_by_step(graph):
    model, x = Network(), torch.randn(40, 4)
    with Probe(model, PAPER, histograms=True) as probe:
        model(100 * x, graph)
        output = model(x, graph)
    by_layer, by_step = Pages(), Pages()
    probe.to_tensorboard(by_layer)
    probe.to_tensorboard(by_step, step=70)
    expected = float(row_diff(output))
    assert by_layer.scalars["row_diff", 3] == pytest.approx(expected)
    assert by_step.scalars["row_diff/layer_03", 70] == pytest.approx(expected)
    assert set(by_layer.histograms) == {
        (f"distance_{k}", n) for k in ("connected", "random") for n in (1, 2, 3)
    }
    assert len(by_step.histograms) == 6
    distances = by_layer.histograms["distance_random", 3]
    assert float(distances.mean()) == pytest.approx(expected, rel=0.05)


def test_tensorboard_writes_a_file(graph, tmp_path):
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    model, x = Network(), torch.randn(40, 4)
    x[0] = torch.nan  # a diverged model writes what is finite
    probe, _ = record(model, x, graph, histograms=True)
    with tensorboard.SummaryWriter(str(tmp_path)) as writer:
        probe.to_tensorboard(writer)
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert {event.step for event in events.Histograms("distance_connected")} <= {1, 2, 3}
    assert [event.step for event in events.Scalars("apsd_random")] == [1, 2, 3]


def test_attention_weights_next_to_states_are_ignored(edge_index):
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.convolution = pyg.GATConv(4, 3)

        def forward(self, x, edge_index):
            return self.convolution(x, edge_index, return_attention_weights=True)

    model = Attention()
    with Probe(model, PAPER) as probe:
        states, _ = model(torch.randn(40, 4), edge_index)
    assert probe.frame()["row_diff"].tolist() == pytest.approx([float(row_diff(states))])


def test_convolution_without_states_raises(raises):
    class Dictionary(nn.Module):
        is_graph_convolution = True

        def forward(self, x, adjacency):
            return {"paper": "x"}

    model = nn.Sequential(Dictionary())
    with Probe(model, PAPER), raises("wrong-type", value="0"):
        model[0](torch.randn(3, 2), None)


def test_model_without_convolutions_is_an_error():
    with pytest.raises(PairNormError, match="no graph convolution"):
        Probe(nn.Linear(3, 3))


def run_and_diagnose(model, x, adjacency, *losses):
    with Probe(model) as probe:
        (model(x, adjacency) * x).sum().backward()
    return probe, probe.verdict(*losses)


def test_by_default_nothing_depends_on_the_scale(graph):
    x, values = torch.randn(40, 4), []
    for scale in (1, 1000):
        with Probe(propagation(2)) as probe:
            probe.model(scale * x, graph)
        values.append(probe.frame())
    torch.testing.assert_close(*(torch.tensor(frame.iloc[:, 4:].to_numpy()) for frame in values))
    assert list(values[0].columns[4:]) == [
        "effective_rank",
        "numerical_rank",
        "mean_average_distance",
        "col_diff",
    ]


def test_states_that_collapse_are_named_with_the_layer(adjacency):
    walk = (adjacency + torch.eye(40)) / (adjacency.sum(1, keepdim=True) + 1)
    x = torch.randn(40, 4)
    probe, verdict = run_and_diagnose(propagation(8), x, walk)
    frame = probe.frame()
    collapsed = (frame["mean_average_distance"] < 0.05) | (frame["numerical_rank"] < 1.05)
    assert verdict.kind == "states-collapse"
    assert collapsed[verdict.layer - 1 : -1].all()
    assert not collapsed[verdict.layer - 2]
    assert f"from layer {verdict.layer} (convolutions.{verdict.layer - 1}) on" in str(verdict)
    # Behind PairNorm the same walk keeps its nodes apart.
    _, verdict = run_and_diagnose(propagation(8, PairNorm()), x, walk)
    assert verdict == ("no-sign", None, verdict.text)
    assert "gradients reach the first layer" in verdict.text


def test_nodes_on_one_line_have_collapsed():
    x = torch.randn(40, 1) * torch.ones(4) + 1e-4 * torch.randn(40, 4)
    verdict = run_and_diagnose(propagation(3), x, torch.eye(40))[1]
    assert verdict.kind == "states-collapse"
    assert verdict.layer == 1
    assert "lie on one line" in verdict.text


def test_vanishing_gradients_are_distinguished_from_collapse():
    """Between its ends tanh passes hardly a gradient on, and keeps the nodes apart."""
    model = propagation(6, lambda x: torch.tanh(6 * x))
    probe, verdict = run_and_diagnose(model, torch.randn(40, 4).sign(), torch.eye(40))
    assert verdict.kind == "gradients-vanish"
    norms = torch.stack([record.norm * record.measures["gradient_norm"] for record in probe.records])
    weak = norms < 1e-3 * norms[-1]
    assert weak[: verdict.layer].all()
    assert not weak[verdict.layer :].any()


def test_diverged_model_is_not_finite(graph):
    model, x = GCN(5, 5, num_layers=3, hidden_channels=4, dropout=0.0), torch.randn(40, 5)
    x[0, 0] = torch.nan
    _, verdict = run_and_diagnose(model, x, graph)
    assert verdict == ("not-finite", 1, "States are not finite from layer 1 (convolutions.0) on.")


def test_states_without_learned_inputs_have_no_gradient_norm(graph):
    assert "gradients were not recorded" in run_and_diagnose(SGC(5, 5), torch.randn(40, 5), graph)[1].text


def test_gradient_norms_are_those_of_autograd(graph):
    model, x = (
        GCN(5, 3, num_layers=3, hidden_channels=4, num_models=2, norm="PN", dropout=0.0),
        torch.randn(40, 5),
    )
    states = []
    for module in (*model.convolutions, model.norm):
        module.register_forward_hook(lambda module, args, output: states.append(output))
    with Probe(model) as probe:
        loss = model(x, graph).square().sum()
    assert "gradients were not recorded" in probe.verdict().text
    gradients = torch.autograd.grad(loss, states, retain_graph=True, allow_unused=True)
    loss.backward()
    seen = [gradient for gradient in gradients if gradient is not None][-1]
    last = probe.records[-1].measures["gradient_norm"]
    torch.testing.assert_close(last.float(), torch.linalg.vector_norm(seen, dim=(0, 2)))
    assert (probe.frame()["gradient_norm"] > 0).all()


def test_losses_show_missing_generalization(raises):
    model, x = propagation(2), torch.randn(40, 4)
    probe, verdict = run_and_diagnose(model, x, torch.eye(40), 0.1, 1.9, 2.0)
    assert verdict.kind == "does-not-generalize"
    assert "0.1 in training, 1.9 in validation and 2 by chance" in str(verdict)
    assert probe.verdict(0.1, 0.5, 2.0).kind == "no-sign"  # it generalizes
    assert probe.verdict(1.9, 2.1, 2.0).kind == "no-sign"  # it does not fit
    with raises("no-loss", value="chance_loss"):
        probe.verdict(0.1, 1.9)


def test_verdict_without_measures_or_pass_raises(raises, graph):
    with raises("no-records"):
        Probe(propagation(2)).verdict()
    with Probe(propagation(2), ["row_diff"]) as probe:
        probe.model(torch.randn(40, 4), graph)
    with raises("no-measure", value="numerical_rank"):
        probe.verdict()


RELATIONS = [("paper", "cites", "paper"), ("author", "writes", "paper"), ("paper", "rev", "author")]


class Relational(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(
            pyg.HeteroConv({relation: pyg.SAGEConv((4, 4), 4) for relation in RELATIONS}) for _ in range(3)
        )

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = {kind: x.relu() for kind, x in conv(x_dict, edge_index_dict).items()}
        return x_dict


@pytest.mark.parametrize("patched", [False, True])
def test_every_node_type_has_its_own_record(patched, edge_index):
    model = Relational()
    sizes = {"paper": 40, "author": 9}
    edges = {
        relation: edge_index
        if relation[0] == relation[2]
        else torch.stack([edge_index[0] % sizes[relation[0]], edge_index[1] % sizes[relation[2]]])
        for relation in RELATIONS
    }
    states = []
    model.convs[0].register_forward_hook(lambda module, args, output: states.append(output))
    handle = add_pair_norm(model, mode="PN") if patched else None
    with Probe(model, [*PAPER, "mean_average_distance", "numerical_rank"]) as probe:
        output = model({kind: torch.randn(size, 4) for kind, size in sizes.items()}, edges)
        sum(x.sum() for x in output.values()).backward()
    frame = probe.frame()
    assert frame["node_type"].tolist() == ["paper", "author"] * 3
    assert frame["layer"].tolist() == [1, 1, 2, 2, 3, 3]
    for kind, row in zip(sizes, range(2), strict=True):
        expected = 2.0 if handle else float(tpsd(states[0][kind])) / sizes[kind] ** 2
        assert frame["apsd_random"][row] == pytest.approx(expected, rel=1e-3)
    # Edges from papers to papers connect papers; there are none between authors.
    assert frame["apd_connected"].notna().tolist() == [True, False] * 3
    assert frame["gradient_norm"].notna().all()
    assert probe.verdict().kind in ("no-sign", "states-collapse")
    shown = {axis.get_title("left") for axis in probe.plot().axes if axis.get_visible()}
    assert shown == {"pairwise distance", "pairwise squared distance", "col-diff", "mean average distance",
                     "numerical rank", "gradient norm"}  # fmt: skip


@pytest.mark.parametrize("patched", [False, True])
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_checkpointed_layers_are_recorded_once(use_reentrant, patched, graph):
    frames = []
    for way in (None, use_reentrant):
        torch.manual_seed(0)
        model, x = Stack(4, nn.ReLU(), use_reentrant=way), torch.randn(40, 4, requires_grad=True)
        if patched:
            add_pair_norm(model, at=[f"after convolutions.{i}" for i in range(3)])
        with Probe(model) as probe:  # hooks see what the backward pass computes again
            model(x, graph).square().sum().backward()
        frames.append(probe.frame())
    assert len(frames[0]) == 4
    if use_reentrant:  # states have no gradient then
        frames[0] = frames[0].drop(columns="gradient_norm")
        frames[1] = frames[1].drop(columns="gradient_norm", errors="ignore")
    pandas.testing.assert_frame_equal(*frames)


def test_compiled_model_is_recorded(graph, edge_index):
    model, x = pyg.GraphSAGE(5, 6, 3, 2), torch.randn(40, 5)
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        output = compiled(x, edge_index)
        with Probe(compiled, ["tpsd"]) as probe:
            torch.testing.assert_close(compiled(x, edge_index), output)
    assert probe.frame()["layer"].tolist() == [1, 2, 3]


def test_decoder_that_takes_a_graph_is_not_recorded(edge_index):
    class Bilinear(nn.Module):
        def forward(self, z, edge_index):
            return (z[edge_index[0]] * z[edge_index[1]]).sum(-1)

    class AutoEncoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = pyg.GCNConv(4, 4), Bilinear()

        def forward(self, x, edge_index):
            return self.decoder(self.encoder(x, edge_index), edge_index)

    model = AutoEncoder()
    probe, _ = record(model, torch.randn(40, 4), edge_index, measures=SCALE_FREE)
    assert probe.frame()["name"].tolist() == ["encoder"]


def test_distances_are_computed_only_for_histograms(graph, monkeypatch):
    def refuse(*_):
        raise AssertionError("distances were computed")

    monkeypatch.setattr(record_module, "pair_distances", refuse)
    model, writer = Network(), Pages()
    probe, _ = record(model, torch.randn(40, 4), graph, measures=SCALE_FREE)
    probe.to_tensorboard(writer)
    assert len(writer.scalars) == 12
    assert writer.histograms == {}


def test_gradients_that_are_all_zero_have_vanished(graph):
    with Probe(propagation(3)) as probe:
        (0 * probe.model(torch.randn(40, 4), graph)).sum().backward()
    verdict = probe.verdict()
    assert (verdict.kind, verdict.layer) == ("gradients-vanish", 3)
    assert "zero at every layer" in verdict.text
