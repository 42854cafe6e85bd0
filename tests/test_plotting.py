import shutil
import sys
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from pairnorm.plotting import Save, Saving, new_figure, save, style, whole_ticks


def draw(folder: Path, save: Save = save) -> list[Path]:
    with style():
        figure = new_figure(3, 2)
        axis = figure.subplots()
        axis.plot([1, 2, 60], [0.1, 0.5, 0.2], label="α ± 1")
        axis.legend()
        whole_ticks(axis)
    return save(figure, folder, "one")


def test_the_same_figure_is_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_users_settings_come_back() -> None:
    before = dict(matplotlib.rcParams)
    with style():
        assert matplotlib.rcParams["axes.spines.top"] is False
    assert dict(matplotlib.rcParams) == before


def test_ticks_are_whole_numbers() -> None:
    axis = new_figure(3, 2).subplots()
    axis.plot([1, 2, 3], [0, 0, 0])
    whole_ticks(axis)
    assert all(float(tick).is_integer() for tick in axis.get_xticks())
    assert axis.get_xlim()[0] == 0


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_another_process_saves_the_same_bytes(tmp_path: Path, processes: int) -> None:
    here = draw(tmp_path / "here")
    with Saving(processes) as there:
        both = [draw(tmp_path / name, there) for name in "ab"]
        helpers = list(there._helpers)
    assert len(helpers) == processes
    assert all(helper.poll() is not None for helper in helpers)
    for files in both:
        assert [path.read_bytes() for path in files] == [path.read_bytes() for path in here]


def test_what_no_other_process_can_save_is_saved_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raises: Any
) -> None:
    for number, executable in enumerate((shutil.which("false"), "/no/such/python", "")):
        monkeypatch.setattr(sys, "executable", executable)
        with Saving(2) as there:
            files = draw(tmp_path / str(number), there)
        assert all(path.stat().st_size for path in files)
    (tmp_path / "file").touch()
    with raises("not-writable"), Saving(1) as there:  # the error is that of saving here
        draw(tmp_path / "file" / "folder", there)


def test_an_error_meanwhile_ends_the_processes(tmp_path: Path) -> None:
    there = Saving(1)

    def fail() -> None:
        with there:
            draw(tmp_path, there)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert there._helpers[0].poll() is not None
