import pickle
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import GCNConv

from pairnorm.base.errors import PairNormError
from pairnorm.data import Graph
from pairnorm.nn import APPNP, GCN, GCNII
from pairnorm.nn.norms import NORMS, BatchNorm
from pairnorm.train import (
    METHODS,
    Spec,
    Store,
    Trial,
    build,
    fit,
    import_method,
    register,
    run,
    train,
)

CPU = torch.device("cpu")
PARTS = ("train", "validation", "test")
TRIAL = Trial(
    seed=0, best_epoch=1, **{f"{part}_{name}": 0.5 for part in PARTS for name in ("loss", "accuracy")}
)
OURS = [(name, model) for name, method in METHODS.items() for model in method.models]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


class Shrink(nn.Module):
    """A method of a user's own: a learned scale of every feature, from the strength on."""

    version, grid = "3", (0.5, 2.0)

    def __init__(self, features: int, strength: float = 1.0) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.full((features,), strength))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale


class Untuned(Shrink):
    """Needs a strength, but has no grid."""

    version, grid = "1", ()

    def __init__(self, features: int, strength: float) -> None:
        super().__init__(features, strength)


class Deep(nn.Module):
    """A model of a user's own, in PyG, which has the strength for a share of the first state."""

    kind, version, grid = "model", "2", (0.1, 0.5)

    def __init__(
        self, in_channels: int, out_channels: int, *, num_layers: int, hidden_channels: int, dropout: float,
        strength: float,
    ) -> None:  # fmt: skip
        super().__init__()
        width = hidden_channels
        self.first, self.last = nn.Linear(in_channels, width), nn.Linear(width, out_channels)
        self.convolutions = nn.ModuleList(GCNConv(width, width) for _ in range(num_layers))
        self.drop, self.strength = nn.Dropout(dropout), strength

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        h = first = self.first(x).relu()
        for convolution in self.convolutions:
            h = convolution(self.drop(h), edge_index).relu().lerp(first, self.strength)
        return self.last(h)


def spec_of(name: str, model: str = "GCN", depth: int = 3, **more: Any) -> Spec:
    return Spec("csbm", model, depth, method=name, epochs=6, **METHODS[name].settings, **more)


@pytest.mark.parametrize(("name", "model"), OURS)
def test_method_trains_trials_independently(name: str, model: str, graph: Graph) -> None:
    spec = spec_of(name, model, missing_rate=0.5)
    together = train(graph, spec, [0, 1, 2], "cpu")
    (alone,) = train(graph, spec, [1], "cpu")
    assert together[1].train_loss == pytest.approx(alone.train_loss, rel=1e-3)
    assert together[1].best_epoch == alone.best_epoch
    assert not any(trial.diverged for trial in together)


@pytest.mark.parametrize(("name", "model"), OURS)
def test_method_changes_the_result(name: str, model: str, graph: Graph) -> None:
    plain = train(graph, Spec("csbm", model, 3, epochs=6, **METHODS[name].settings), [0], "cpu")[0]
    changed = train(graph, spec_of(name, model), [0], "cpu")[0]
    assert (changed.train_loss == plain.train_loss) == (name == "none")


@pytest.mark.parametrize("name", ["BatchNorm", "DiffGroupNorm", "Residual"])
def test_running_statistics_of_best_epoch_are_kept(name: str, graph: Graph) -> None:
    """A model that is evaluated again gives the validation accuracy for which its epoch was kept."""
    spec = spec_of(name, learning_rate=0.05).replace(epochs=30)
    trials = train(graph, spec, [0, 1], "cpu", curves=True)
    model = fit(graph, spec, [0, 1], "cpu")
    assert not model.training
    for trial in trials:
        assert trial.validation_accuracy == pytest.approx(max(trial.curves["validation_accuracy"]))


def test_build_of_each_method() -> None:
    def built(name: str, **more: Any) -> nn.Module:
        return build(spec_of(name, **more), 10, 3, [0], CPU)

    assert isinstance(built("GCNII", strength=0.5), GCNII)
    assert built("GCNII", strength=0.5).alpha == 0.5
    assert isinstance(built("APPNP"), APPNP)
    assert built("DropEdge", strength=0.2).drop_edge == 0.2
    assert built("JK-max").jump == "max"
    residual = built("Residual")
    assert isinstance(residual.norms[0], BatchNorm)
    assert residual.order == "before"
    assert residual.residuals is not None
    assert built("NodeNorm", strength=3).norms[0].p == 3
    assert built("PN-SI", strength=10).norm.scale == 10
    assert built("Skip", strength=1).skip == 1
    assert set(NORMS) < set(METHODS)


class TestSpec:
    def test_method_expressed_by_fields_has_their_text(self) -> None:
        assert Spec("cora", "GCN", 8, method="PN", strength=10) == Spec(
            "cora", "GCN", 8, norm="PN", scale=10.0
        )
        assert Spec("cora", "GCN", 8, method="PN-SI", scale=5) == Spec(
            "cora", "GCN", 8, norm="PN-SI", scale=5
        )
        assert Spec("cora", "GAT", 8, method="Skip", strength=2) == Spec("cora", "GAT", 8, skip=2)
        assert Spec("cora", "GCN", 8, method="none", strength=3) == Spec("cora", "GCN", 8)

    def test_default_strength_is_in_the_text(self) -> None:
        spec = Spec("cora", "GCN", 8, method="DropEdge")
        assert spec.text == f"{Spec('cora', 'GCN', 8).text} remedy=DropEdge strength=0.5"
        assert Spec.parse(spec.text) == spec == Spec("cora", "GCN", 8, method="DropEdge", strength=0.5)
        assert Spec("cora", "GCN", 8, method="BatchNorm", strength=7).strength == 0

    def test_order_applies_to_norms_only(self) -> None:
        assert spec_of("BatchNorm", order="before") != spec_of("BatchNorm")
        for name in ("Residual", "GCNII", "JK-max"):
            assert spec_of(name, order="before") == spec_of(name)

    def test_incompatible_fields_raise(self, raises: Any) -> None:
        with raises("not-together", value="PN"):
            Spec("cora", "GCN", 8, norm="PN", method="GCNII")
        with raises("not-together", value="PN"):
            Spec("cora", "GCN", 8, norm="PN", method="PN-SI")
        with raises("not-together", value=1):
            Spec("cora", "GCN", 8, skip=1, method="BatchNorm")
        with raises("not-together", value="GAT"):
            Spec("cora", "GAT", 8, method="GCNII")
        with raises("unknown-choice", value="PairNorm", expected="a mode of it: 'PN', 'PN-SI', 'PN-SCS'"):
            Spec("cora", "GCN", 8, method="PairNorm")
        with raises("unknown-choice", value="Batchnorm"):
            Spec("cora", "GCN", 8, method="Batchnorm")
        with raises("not-a-whole-number", value=1.5):
            Spec("cora", "GCN", 8, method="Skip", strength=1.5)
        assert Spec("cora", "GCN", 8, norm="PN", method="DropEdge").norm == "PN"


class TestOwn:
    def test_torch_module_is_a_method(self, graph: Graph) -> None:
        assert register("Theirs", nn.BatchNorm1d) == "Theirs@1"
        spec = Spec("csbm", "GCN", 3, method="Theirs", epochs=6)
        assert spec.method == "Theirs@1"
        for ours, theirs in zip(
            train(graph, spec_of("BatchNorm"), [0, 1], "cpu"), train(graph, spec, [0, 1], "cpu"), strict=True
        ):
            assert ours.train_loss == pytest.approx(theirs.train_loss, rel=1e-4)

    def test_grid_passes_strength(self, graph: Graph) -> None:
        register("Shrink", Shrink, grid=(0.5, 2.0))
        usual, other = (Spec("csbm", "GCN", 3, method="Shrink", strength=value, epochs=3) for value in (0, 2))
        assert usual.strength == 0.5
        model = build(other, 10, 3, [0, 1], CPU)
        assert model.norms[0].stacked[0].eq(2).all()
        assert train(graph, usual, [0], "cpu") != train(graph, other, [0], "cpu")

    def test_new_version_is_another_spec(self) -> None:
        register("Shrink", Shrink, version="1")
        first = Spec("cora", "GCN", 3, method="Shrink")
        register("Shrink", Shrink, version="2")
        second = Spec("cora", "GCN", 3, method="Shrink")
        assert first.method == "Shrink@1"
        assert second.method == "Shrink@2"
        assert first.hash != second.hash
        assert isinstance(build(first, 10, 3, [0], CPU), GCN)

    def test_import_by_path_and_entry_point(self, raises: Any) -> None:
        assert import_method(f"{__name__}:Shrink") == f"{__name__}:Shrink@3"
        spec = Spec("cora", "GCN", 3, method=f"{__name__}:Shrink")
        assert (spec.method, spec.strength) == (f"{__name__}:Shrink@3", 0.5)
        assert build(spec, 10, 3, [0], CPU).norms[0].stacked[0].eq(0.5).all()
        assert import_method("PN-SI") == "PN-SI"
        with raises("unknown-choice", value="Nothing"):
            import_method("Nothing")
        with raises("not-importable", value=f"{__name__}:Shrunk"):
            import_method(f"{__name__}:Shrunk")
        with raises("not-importable", value="no.such:Module"):
            import_method("no.such:Module")

    @pytest.mark.parametrize("suffix", ["", "@1"])
    def test_text_never_imports_code(
        self, raises: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
    ) -> None:
        (tmp_path / "imported_by_text.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nNorm = None\n")
        monkeypatch.syspath_prepend(tmp_path)
        name = f"imported_by_text:Norm{suffix}"
        with Store(tmp_path / "store.sqlite") as store:
            store.add(Spec("cora", "GCN", 2, method="BatchNorm"), [], seconds=0.0)
            store.add(Spec("cora", "GCN", 2, method="GCNII"), [TRIAL], seconds=1.0)
            exported = store.export(tmp_path / "store.csv")
        with closing(sqlite3.connect(store.path)) as connection, connection:
            connection.execute("UPDATE protocols SET remedy = ?", [name])
        exported.write_text(exported.read_text().replace("GCNII", name))

        def use(path: Path) -> None:
            with Store(tmp_path / f"other{suffix}.sqlite") as other:
                other.merge(path)
                for spec in other.trials_by_spec():
                    build(spec, 10, 3, [0], CPU)

        for path in (store.path, exported):
            with pytest.raises(PairNormError) as caught:
                use(path)
            assert caught.value.code in ("not-imported", "wrong-hash")
        with raises("not-imported") as refused:
            build(Spec.parse(f"cora GCN depth=2 remedy={name}"), 10, 3, [0], CPU)
        assert "--method imported_by_text:Norm" in refused.value.hint
        assert not (tmp_path / "ran").exists()

    def test_failing_method_is_named(self, raises: Any, graph: Graph) -> None:
        register("Ungiven", Untuned)
        with raises("method-failed", value=(32,)):
            train(graph, Spec("csbm", "GCN", 3, method="Ungiven"), [0], "cpu")
        register("Narrow", partial(nn.Linear, out_features=3))
        with raises("method-failed", value=(32,)):
            train(graph, Spec("csbm", "GCN", 3, method="Narrow"), [0], "cpu")

    def test_store_is_readable_without_the_method(self, raises: Any, tmp_path: Any, graph: Graph) -> None:
        register("Shrink", Shrink, version="1", grid=(0.5, 2.0))
        spec = Spec("csbm", "GCN", 2, method="Shrink", epochs=3)
        with Store(tmp_path / "s.sqlite") as store:
            assert run([(spec, 0)], store, device="cpu", graphs={"csbm": graph}, workers=1) == 1
            METHODS.pop("Shrink@1")
            assert list(store.trials_by_spec()) == [spec.on(graph)]
            with raises("not-imported", value="Shrink@1"):
                build(spec, 10, 3, [0], CPU)
            register("Shrink", Shrink, version="9")
            with raises("other-version", value="Shrink@1"):
                build(spec, 10, 3, [0], CPU)

    def test_invalid_names_raise(self, raises: Any) -> None:
        with raises("name-taken", value="GCNII"):
            register("GCNII", Shrink)
        with raises("not-a-name", value="mine@2"):
            register("mine@2", Shrink)

    def test_method_reaches_worker_processes(self) -> None:
        register("Theirs", nn.BatchNorm1d)
        assert pickle.loads(pickle.dumps(METHODS["Theirs@1"])).models == ("GCN", "GAT")


class TestOwnModel:
    def test_trials_train_independently(self, graph: Graph) -> None:
        register("Deep", Deep)
        spec = Spec("csbm", "GCN", 3, method="Deep", missing_rate=0.5, epochs=6)
        assert (spec.method, spec.strength) == ("Deep@2", 0.1)
        names = ["effective_rank", "gradient_first", "gradient_last", "parameters"]
        together = train(graph, spec, [0, 1, 2], "cpu", measures=names)
        (alone,) = train(graph, spec, [1], "cpu", measures=names)
        assert together[1].train_loss == pytest.approx(alone.train_loss, rel=1e-4)
        assert together[1].measures == pytest.approx(alone.measures, rel=1e-3)
        assert all(trial.measures["gradient_first"] > 0 for trial in together)
        model = fit(graph, spec, [1], "cpu")
        assert alone.measures["parameters"] == sum(parameter.numel() for parameter in model.parameters())
        assert train(graph, spec.replace(strength=0.5), [1], "cpu")[0].train_loss != alone.train_loss

    def test_adjacency_is_not_in_the_text_of_own_models(self) -> None:
        register("Deep", Deep)
        spec = Spec("csbm", "GCN", 3, method="Deep")
        assert spec.replace(adjacency="sym") == spec
        assert Spec("csbm", "GCN", 3, method="GCNII", adjacency="sym").adjacency == "sym"

    def test_incompatible_fields_raise(self, raises: Any, graph: Graph) -> None:
        register("Deep", Deep)
        with raises("not-together", value="GAT"):
            Spec("csbm", "GAT", 3, method="Deep")
        with raises("not-together", value="PN"):
            Spec("csbm", "GCN", 3, method="Deep", norm="PN")
        with raises("unknown-choice", value="layer"):
            register("Layer", Deep, kind="layer")
        register("Flat", nn.Linear, kind="model")
        with raises("method-failed", value=(graph.num_features, graph.num_classes)):
            train(graph, Spec("csbm", "GCN", 3, method="Flat"), [0], "cpu")

    def test_registered_and_installed_methods_reach_worker_processes(
        self, raises: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, graph: Graph
    ) -> None:
        """An installed distribution, as importlib.metadata finds it, that was never registered by hand."""
        register("Theirs", nn.BatchNorm1d)
        (tmp_path / "their_package.py").write_text(
            "from torch import nn\n"
            "class Perceptron(nn.Linear):\n"
            "    kind, version = 'model', '7'\n"
            "    def __init__(self, in_channels, out_channels, *, num_layers, hidden_channels, dropout):\n"
            "        super().__init__(in_channels, out_channels)\n"
            "    def forward(self, x, edge_index):\n"
            "        return super().forward(x)\n"
        )
        installed = tmp_path / "their_package-1.0.dist-info"
        installed.mkdir()
        (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
        (installed / "entry_points.txt").write_text(
            "[pairnorm.methods]\nPerceptron = their_package:Perceptron\nIdentity = torch.nn:Identity\n"
        )
        monkeypatch.syspath_prepend(tmp_path)
        with raises("not-imported", value="Perceptron"):
            Spec("csbm", "GCN", 2, method="Perceptron")
        for name in ("Perceptron", "Identity"):
            import_method(name)
        specs = [
            Spec("csbm", "GCN", 2, method=name, epochs=3) for name in ("Perceptron", "Identity", "Theirs")
        ]
        assert [spec.method for spec in specs] == ["Perceptron@7", "Identity@1", "Theirs@1"]
        with Store(tmp_path / "s.sqlite") as store:
            pairs = [(spec, seed) for spec in specs for seed in range(2)]
            assert run(pairs, store, device="cpu", graphs={"csbm": graph}, workers=2) == 6


def test_measures_of_own_model(graph: Graph) -> None:
    names = ["relative_energy", "gradient_first", "gradient_last", "parameters", "effective_rank"]
    for name in ("none", "BatchNorm", "DropEdge", "APPNP"):
        spec = spec_of(name, depth=5)
        measured, plain = (train(graph, spec, [0, 1], "cpu", measures=some) for some in (names, ()))
        for trial, other in zip(measured, plain, strict=True):
            assert trial.train_loss == other.train_loss  # to measure changes nothing
            assert list(trial.measures) == names
            assert trial.measures["gradient_first"] > 0
            assert 0 <= trial.measures["relative_energy"] <= 2
    model = build(spec_of("none", depth=5), graph.num_features, graph.num_classes, [0], CPU)
    (trial,) = train(graph, spec_of("none", depth=5), [0], "cpu", measures=["parameters"])
    assert trial.measures["parameters"] == sum(parameter.numel() for parameter in model.parameters())
