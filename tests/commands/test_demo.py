import sys

from pairnorm.commands import reproduce


def test_demo_prints_table_and_saves_figure(tmp_path, pairnorm, monkeypatch):
    for name, value in {"DEMO_RUNS": 1, "DEMO_EPOCHS": 3, "DEMO_DEPTHS": (1, 2)}.items():
        monkeypatch.setattr(reproduce, name, value)
    printed = pairnorm("demo", "--out", tmp_path, "--workers", "1").out
    assert "1 runs instead of 5, 3 epochs instead of 500" in printed
    assert "2 depths instead of 20" in printed
    for number in ("0.815", "0.423", "0.811", "0.745"):  # the paper's
        assert number in printed
    assert {path.name for path in tmp_path.iterdir()} == {
        "demo.sqlite", "accuracy-against-depth.png", "accuracy-against-depth.pdf"
    }  # fmt: skip
    assert "Training" not in pairnorm("demo", "--out", tmp_path, "--workers", "1").out


def test_missing_matplotlib_skips_the_figure(tmp_path, pairnorm, monkeypatch):
    for name, value in {"DEMO_RUNS": 1, "DEMO_EPOCHS": 2, "DEMO_DEPTHS": (1,)}.items():
        monkeypatch.setattr(reproduce, name, value)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "Note: no figure was drawn" in pairnorm("demo", "--out", tmp_path, "--workers", "1").err
    assert [path.name for path in tmp_path.iterdir()] == ["demo.sqlite"]


def test_help_describes_the_demo(pairnorm):
    assert "without a network" in pairnorm("demo", "--help").out
