import errno
import fcntl
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path

import pytest

from helpers import contents
from pairnorm.base.files import (
    CHANGE,
    atomic_file,
    atomic_folder,
    check_not_file,
    locked_folder,
    reserved,
    writable,
)

NAMES = tuple(f"{letter}.txt" for letter in "abcdef")


def test_atomic_file_creates_folders_and_replaces(tmp_path):
    path = tmp_path / "a" / "b" / "table.csv"
    for text in ("old", "new"):
        with atomic_file(path) as draft:
            draft.write_text(text)
            assert draft.suffix == path.suffix
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_error_keeps_old_file_and_removes_draft(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("old")
    with pytest.raises(KeyError), atomic_file(path) as draft:  # noqa: PT012
        draft.write_text("half")
        raise KeyError
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_writing_to_a_folder_raises(tmp_path, raises):
    with raises("is-a-folder", value=str(tmp_path)), atomic_file(tmp_path):
        pass


def test_unwritable_path_raises_with_reason(tmp_path, raises):
    (tmp_path / "file").touch()
    with raises("not-writable"), atomic_file(tmp_path / "file" / "out.csv"):
        pass
    with raises("not-writable", value="out") as caught, writable(Path("out")):
        raise OSError(28, os.strerror(28))
    assert str(caught.value) == "out: cannot be written (No space left on device). Choose another path."
    with raises("not-writable") as caught, writable(Path("out")):
        raise OSError("no reason")
    assert "(no reason)" in str(caught.value)


@pytest.mark.parametrize(
    "write", [atomic_file, lambda path: atomic_folder(path, NAMES)], ids=["file", "folder"]
)
def test_only_disk_errors_are_attributed_to_the_file(tmp_path, raises, write):
    """What fails for its own reasons, such as reading something else, is not the writing's fault."""
    out = tmp_path / "out"
    with pytest.raises(FileNotFoundError, match="elsewhere"), write(out):
        open(tmp_path / "elsewhere")  # noqa: SIM115
    with pytest.raises(ConnectionResetError), write(out):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    with raises("not-writable", value=str(out)), write(out):
        raise OSError(errno.ENOSPC, "full")
    with raises("not-writable", value=str(out)), write(out) as draft:
        (draft / "deeper" / "file").write_text("x")
    assert list(tmp_path.iterdir()) == []


def write_run(folder: Path, text: str, names: tuple[str, ...] = NAMES, pause: float = 0.0) -> None:
    with atomic_folder(folder, NAMES) as drafts:
        for name in names:
            (drafts / name).write_text(text)
            time.sleep(pause)


def test_atomic_folder_replaces_own_files_only(tmp_path):
    write_run(tmp_path / "deep" / "run", "1")
    (tmp_path / "deep" / "run" / "theirs.md").write_text("theirs")
    write_run(tmp_path / "deep" / "run", "2", NAMES[:2])
    assert contents(tmp_path / "deep") == {"run/a.txt": "2", "run/b.txt": "2", "run/theirs.md": "theirs"}


@pytest.mark.parametrize("done", range(len(NAMES) + 1))
def test_interrupted_change_is_completed(tmp_path, done):
    write_run(tmp_path, "old")
    (tmp_path / CHANGE).mkdir()
    for number, name in enumerate(NAMES[:-1]):
        (tmp_path / name if number < done else tmp_path / CHANGE / name).write_text("new")
    (tmp_path / CHANGE / f"{NAMES[-1]}.gone").touch()
    if done % 2:
        with locked_folder(tmp_path):
            assert contents(tmp_path) == dict.fromkeys(NAMES[:-1], "new")
    else:
        write_run(tmp_path, "new", NAMES[:-1])
    assert contents(tmp_path) == dict.fromkeys(NAMES[:-1], "new")
    assert not (tmp_path / CHANGE).exists()


def _keep_writing(folder: Path, text: str) -> None:
    for count in range(10_000):
        write_run(folder, text, NAMES if count % 2 else NAMES[:3])


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")  # Python 3.12, of threads
@pytest.mark.parametrize("there", [False, True])
def test_killed_processes_never_mix_their_files(tmp_path, there):
    """Two processes write into one folder; after a kill it has one complete run and no drafts."""
    out, draw = tmp_path / "run", random.Random(0)
    if there:
        out.mkdir()
    context = multiprocessing.get_context("fork")
    for round_ in range(12):
        writers = [context.Process(target=_keep_writing, args=(out, f"{round_}{name}")) for name in "xy"]
        for writer in writers:
            writer.start()
        time.sleep(draw.uniform(0.01, 0.12))
        for writer in writers:
            os.kill(writer.pid, signal.SIGKILL)
            writer.join()
        with locked_folder(out):
            pass
        with atomic_folder(out, NAMES) as drafts:
            visible = [path for path in out.glob("*") if path.is_file()]
            assert len({path.read_text() for path in visible}) <= 1
            assert {path.name for path in visible} in (set(), set(NAMES[:3]), set(NAMES))
            for path in visible:
                (drafts / path.name).write_text(path.read_text())
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        assert all(path.suffix == ".txt" for path in out.iterdir()), list(out.iterdir())


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_reader_never_sees_two_runs(tmp_path):
    write_run(tmp_path, "first")
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_keep_writing, args=(tmp_path, name)) for name in "xy"]
    for writer in writers:
        writer.start()
    try:
        end = time.monotonic() + 2
        while time.monotonic() < end:
            with locked_folder(tmp_path):
                result = {path.name: path.read_text() for path in tmp_path.glob("*.txt")}
            assert len(set(result.values())) == 1
            assert set(result) in (set(NAMES[:3]), set(NAMES))
    finally:
        for writer in writers:
            writer.kill()
            writer.join()


def test_drafts_of_a_live_process_are_kept(tmp_path):
    with atomic_folder(tmp_path / "run", NAMES) as first:
        (first / "a.txt").write_text("first")
        write_run(tmp_path / "run", "second")
        assert (first / "a.txt").exists()
    assert contents(tmp_path / "run") == {"a.txt": "first"}


def test_reserved_folder_is_exclusive_and_kept_after_errors(tmp_path, raises):
    folder = tmp_path / "work"
    with pytest.raises(KeyError), reserved(folder):  # noqa: PT012
        with atomic_file(folder / "done") as draft:  # which locks the folder too
            draft.touch()
        with raises("in-use", value=str(folder)), reserved(folder):
            pass
        raise KeyError
    assert [path.name for path in folder.iterdir()] == ["done"]
    with reserved(folder):
        assert (folder / "done").exists()
    assert not folder.exists()
    with pytest.raises(KeyError), reserved(folder):
        raise KeyError
    assert not folder.exists()


def test_numpy_write_error_is_a_full_disk(tmp_path, raises):
    with raises("not-writable", value="out"), writable(Path("out"), tmp_path):
        raise OSError("250 requested and 0 written")


def test_foreign_lock_times_out(tmp_path, raises, monkeypatch):
    monkeypatch.setattr("pairnorm.base.files.LOCK_SECONDS", 0.1)
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        for use in (locked_folder(tmp_path), atomic_folder(tmp_path, NAMES), atomic_file(tmp_path / "a.csv")):
            with raises("in-use", value=str(tmp_path)), use:
                pass
    finally:
        os.close(held)


def test_pipes_and_devices_raise(tmp_path, raises):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with raises("not-a-file", value=str(path)), atomic_file(path):
            pass
    with raises("is-a-file"):
        check_not_file(tmp_path / "pipe")


def test_own_drafts_can_be_read_before_commit(tmp_path):
    """``fit`` loads the model that it wrote before it reports success."""
    with atomic_folder(tmp_path / "run", NAMES) as drafts:
        (drafts / "a.txt").write_text("new")
        with locked_folder(drafts):
            assert (drafts / "a.txt").read_text() == "new"
