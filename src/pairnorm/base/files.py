"""Write files and folders atomically, lock folders, and explain what cannot be written."""

import csv
import errno
import io
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from pairnorm.base.errors import PairNormError

# Errors of a full or failing disk, which name no file.
DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
CHANGE, REMOVED = ".pairnorm-change", ".gone"
MAX_PATH_LENGTH = 300
LOCK_SECONDS = 30.0
"""How long to wait for another process that holds a lock."""
_own_drafts: set[Path] = set()


def _refused(problem: str, path: Path, code: str, hint: str = "Choose another path.") -> PairNormError:
    text, half = str(path), MAX_PATH_LENGTH // 2
    shown = text if len(text) <= MAX_PATH_LENGTH else f"{text[:half]}…{text[-half:]}"
    return PairNormError(f"{shown}: {problem}", code=code, value=text, hint=hint)


def check_path(path: Path) -> Path:
    """Return a path, or raise an error if no file can be there: too long, circular, in a closed folder."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # the caller decides whether it must exist
    except (OSError, ValueError) as error:
        raise _refused(f"cannot be used ({_reason(error)})", path, "unusable-path") from error
    return path


def check_not_file(folder: Path) -> None:
    """Raise an error if the folder to write to is a file."""
    if folder.exists() and not folder.is_dir():
        raise _refused("there is a file of that name", folder, "is-a-file", "Choose another folder.")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Give a draft that replaces ``path`` at the end; after an error, nothing has changed.

    A link stays one: its target is replaced. Pipes and devices are refused: they may block forever.

    Args:
        path: the file; an existing one is replaced, missing folders are created.
    """
    if check_path(path).is_dir():
        raise _refused("there is a folder of that name", path, "is-a-folder", "Name a file.")
    if path.exists() and not path.is_file():
        raise _refused("this is a pipe or a device, not a file", path, "not-a-file", "Name a file.")
    target = path.resolve()
    with writable(path):
        target.parent.mkdir(parents=True, exist_ok=True)
    with _drafts_of(path, lambda drafts: (drafts / path.name).replace(target)) as drafts:
        yield drafts / path.name


@contextmanager
def atomic_folder(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing has changed.

    One rename commits the change. If ``folder`` did not exist, that is all. Otherwise the drafts are renamed
    to a folder inside it, and their files then move to their places; after a kill in between, the next
    process completes the move. Of several processes at once, the last one's files remain.

    Args:
        folder: absent, or with files of an earlier change.
        names: all files that a change may write; those that it does not write are removed. Others stay.
    """
    target = check_path(folder).resolve()
    with _drafts_of(folder, lambda drafts: _commit(drafts, target, names)) as drafts:
        yield drafts


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, with the same bytes on every system."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def csv_text(headings: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """Return a table as CSV.

    >>> csv_text(["id", "name"], [[1, "a, b"]])
    'id,name\\n1,"a, b"\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([headings, *rows])
    return text.getvalue()


@contextmanager
def writable(path: Path, draft: Path | None = None) -> Iterator[None]:
    """Turn errors of writing into one that names the path and the reason.

    Args:
        path: the file or folder.
        draft: where it is written in the meantime, by code that may fail for other reasons too: only errors
            about the draft or the disk are then attributed to ``path``.
    """
    try:
        yield
    except OSError as error:
        if draft is not None and not _is_about(error, draft):
            raise
        raise _refused(f"cannot be written ({_reason(error)})", path, "not-writable") from error


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def _is_about(error: OSError, draft: Path) -> bool:
    if error.filename is None:  # some libraries set no number either
        return error.errno in DISK_ERRORS or "free space" in str(error) or "requested and" in str(error)
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    return named is not None and (named == draft or draft in named.parents)


@contextmanager
def reserved(folder: Path, *drafts: str) -> Iterator[None]:
    """Create a folder for this process alone, and remove it after success.

    Args:
        folder: for unfinished work; after an error it stays, and the next run may resume from it.
        drafts: files in it that no run resumes from, removed after an error too.
    """
    mark = folder / ".reserved"  # the folder itself is locked for every file that is written in it
    with writable(folder):
        mark.mkdir(parents=True, exist_ok=True)
    with writable(folder, folder), _locked(mark, seconds=0):
        try:
            yield
            shutil.rmtree(folder)
        finally:
            with suppress(OSError):  # keep unfinished work
                for draft in drafts:
                    (folder / draft).unlink(missing_ok=True)
                mark.rmdir()
                folder.rmdir()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep others from changing a folder while it is read, after completing a change that was interrupted.

    Args:
        folder: of ``atomic_folder``. Drafts of this process are locked already.
    """
    with ExitStack() as stack:
        if folder.is_dir() and folder.resolve() not in _own_drafts:
            try:
                stack.enter_context(_locked(folder))
            except OSError as error:
                raise _refused(f"cannot be read ({_reason(error)})", folder, "not-readable", "") from error
            with writable(folder):
                _finish(folder)
        yield


@contextmanager
def _drafts_of(path: Path, commit: Callable[[Path], object]) -> Iterator[Path]:
    """Give a new folder for drafts of a file or folder, and commit them at the end."""
    with ExitStack() as stack:
        with writable(path):
            drafts = _new_drafts(path.resolve(), stack)
        with writable(path, drafts):
            yield drafts
        with writable(path):
            commit(drafts)


def _new_drafts(target: Path, stack: ExitStack) -> Path:
    """Create a locked folder that ``stack`` removes; also remove those of processes that have ended."""
    # In the folder itself or, if it does not exist, in the nearest one above: a move is then a rename.
    above = next(above for above in target.parents if above.exists())
    if not above.is_dir():  # fail now, not after the work
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
    nearest = target if target.is_dir() else above
    for where in (target, above):
        if where.is_dir() and os.access(where, os.R_OK | os.W_OK):
            with _locked(where):  # nobody is between creating drafts and locking them
                for old in drafts_in(where, target):
                    with suppress(OSError, PairNormError), _locked(old, seconds=0):
                        shutil.rmtree(old, ignore_errors=True)
    drafts = nearest / f".{target.name[:40]}.{uuid4().hex[:8]}.partial"
    with _locked(nearest):
        drafts.mkdir()
        stack.callback(shutil.rmtree, drafts, ignore_errors=True)
        stack.enter_context(_locked(drafts))
    _own_drafts.add(drafts)
    stack.callback(_own_drafts.discard, drafts)
    return drafts


def drafts_in(where: Path, target: Path) -> list[Path]:
    """Return the drafts of a folder that are in progress, or that a killed process left."""
    prefix = f".{target.name[:40]}."
    partial = (entry for entry in where.iterdir() if entry.suffix == ".partial" and entry.is_dir())
    return [entry for entry in partial if entry.name.startswith(prefix)]


def _commit(drafts: Path, target: Path, names: Collection[str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        drafts.rename(target)  # absent or empty
    except OSError:
        if not target.is_dir():
            raise
        for name in set(names) - {draft.name for draft in drafts.iterdir()}:
            (drafts / f"{name}{REMOVED}").touch()
        with _locked(target):
            _finish(target)
            drafts.rename(target / CHANGE)
            _finish(target)


def _finish(target: Path) -> None:
    """Finish a committed change of a folder: move its drafts to their places. May be called again."""
    change = target / CHANGE
    if change.is_dir():
        for draft in change.iterdir():
            if draft.suffix == REMOVED:
                (target / draft.stem).unlink(missing_ok=True)
                draft.unlink()
            else:
                draft.replace(target / draft.name)
        change.rmdir()


@contextmanager
def _locked(folder: Path, seconds: float | None = None) -> Iterator[None]:
    """Lock a folder; the lock also ends with the process.

    Raises:
        PairNormError: another process holds the lock for longer than ``seconds``.
    """
    try:
        import fcntl
    except ImportError:  # Windows cannot lock folders
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    end = time.monotonic() + (LOCK_SECONDS if seconds is None else seconds)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    shown = folder.parent if folder.name == ".reserved" else folder
                    problem = f"{shown}: another process uses this folder"
                    hint = "Wait for it to end, or choose another folder: {out}"
                    raise PairNormError(
                        problem, code="in-use", value=str(shown), hint=hint, out=...
                    ) from error
                time.sleep(0.02)
        yield
    finally:
        os.close(descriptor)
