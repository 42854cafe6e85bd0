import os
from pathlib import Path

import pytest

from pairnorm.errors import PairNormError
from pairnorm.writing import whole_file, writable


def test_a_file_comes_with_its_folders_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "table.csv"
    for text in ("old", "new"):
        with whole_file(path) as draft:
            draft.write_text(text)
            assert draft.suffix == path.suffix
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_an_error_leaves_what_was_there_and_no_draft(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(KeyError), whole_file(path) as draft:  # noqa: PT012
        draft.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(PairNormError, match="there is a folder of that name"), whole_file(tmp_path):
        pass


def test_what_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PairNormError, match="cannot be written"), whole_file(tmp_path / "file" / "out.csv"):
        pass
    with pytest.raises(PairNormError, match=r"out: cannot be written \(No space left"), writable(Path("out")):
        raise OSError(28, os.strerror(28))
    with pytest.raises(PairNormError, match=r"\(no reason\)"), writable(Path("out")):
        raise OSError("no reason")
