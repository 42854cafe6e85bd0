from pathlib import Path

import matplotlib
import pytest

from pairnorm.base.errors import PairNormError
from pairnorm.base.plotting import new_figure, save, style, use_integer_ticks


def draw(folder: Path, height: float = 0.2, color: str = "red") -> list[Path]:
    with style():
        figure = new_figure(3, 2)
        axis, _ = figure.subplots(1, 2, sharey=True)
        axis.plot([1, 2, 60], [0.1, 0.5, height], label="α ± 1", color=color)
        axis.legend()
        use_integer_ticks(axis)
    return save(figure, folder, "one")


def test_equal_figures_have_equal_bytes(tmp_path, monkeypatch):
    first = draw(tmp_path / "a")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    matplotlib.rcParams["savefig.dpi"] = 37  # a user's own settings do not matter
    try:
        second = draw(tmp_path / "b")
    finally:
        matplotlib.rcParams["savefig.dpi"] = "figure"
    assert [path.name for path in first] == ["one.png", "one.pdf"]
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert b"CreationDate" not in first[1].read_bytes()
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"one.png", "one.pdf"}


def test_different_figure_replaces_the_files(tmp_path):
    before = [path.read_bytes() for path in draw(tmp_path)]
    after = [path.read_bytes() for path in draw(tmp_path, color="blue")]
    assert all(old != new for old, new in zip(before, after, strict=True))


def test_unwritable_figure_raises(tmp_path):
    (tmp_path / "one.png").mkdir()
    with pytest.raises(PairNormError, match="there is a folder of that name"):
        draw(tmp_path)


def test_user_settings_are_restored():
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


def test_integer_ticks_are_whole_numbers():
    axis = new_figure(3, 2).subplots()
    axis.plot([1, 2, 3], [0, 0, 0])
    use_integer_ticks(axis)
    assert all(float(tick).is_integer() for tick in axis.get_xticks())
    assert axis.get_xlim()[0] == 0
