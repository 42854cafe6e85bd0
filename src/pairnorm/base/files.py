"""Files and folders that are written whole or not at all, and a message where they cannot be."""

import csv
import errno
import io
import os
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from pairnorm.base.errors import PairNormError

# What a full disk and its like say; these errors name no file.
DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}
CHANGE, GONE = ".pairnorm-change", ".gone"


def check_path(path: Path) -> Path:
    """Return a path, or raise an error if nothing can be there: too long, circular, in a closed folder."""
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # what is to be there is for others to say
    except (OSError, ValueError) as error:
        problem = f"{shortened(path)}: cannot be used ({getattr(error, 'strerror', None) or error})"
        hint = "Choose another name or place."
        raise PairNormError(problem, code="unusable-path", value=str(path), hint=hint) from error
    return path


def shortened(path: Path, most: int = 300) -> str:
    """Return a path that may be very long, its middle left out."""
    text = str(path)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-most // 2 :]}"


def is_stream(path: Path) -> bool:
    """Say whether what is written to a path goes through it: a pipe, a device, or ``/dev/stdout``."""
    return path.exists() and not path.is_dir() and (not path.is_file() or path.is_relative_to("/dev"))


def refuse_file(folder: Path) -> None:
    """Raise an error where there is a file in the place of a folder to write to."""
    if folder.is_file():
        problem, hint = f"{folder}: there is a file of that name", "Choose another folder."
        raise PairNormError(problem, code="is-a-file", value=str(folder), hint=hint)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a draft that takes the place of ``path`` at the end; after an error, nothing has changed.

    A link stays one: what it points to is replaced. What is no regular file is written through.

    Args:
        path: the file; one that is there is replaced, folders that are not there are made.
    """
    if check_path(path).is_dir():
        problem = f"{path}: there is a folder of that name"
        raise PairNormError(problem, code="is-a-folder", value=str(path), hint="Name a file.")
    place = path.resolve()
    with ExitStack() as stack:
        with writable(path):
            if is_stream(path):
                drafts = Path(stack.enter_context(TemporaryDirectory()))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                drafts = stack.enter_context(_drafts(place))
        draft = drafts / path.name
        with writable(path, drafts):
            yield draft
        with writable(path):
            if is_stream(path):
                with draft.open("rb") as source, path.open("wb") as target:
                    shutil.copyfileobj(source, target)
            else:
                draft.replace(place)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all, the same bytes on every system; see ``whole_file``."""
    with whole_file(path) as draft:
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
    """Say which path could not be written, and why.

    Args:
        path: the file or folder.
        draft: where it is written in the meantime, by code that may also fail for other reasons: only what
            is wrong with the draft or the disk is then said of ``path``.
    """
    try:
        yield
    except OSError as error:
        if draft is not None and not _is_about(error, draft):
            raise
        problem = f"{path}: cannot be written ({error.strerror or error})"
        hint = "Choose another place."
        raise PairNormError(problem, code="not-writable", value=str(path), hint=hint) from error


def _is_about(error: OSError, draft: Path) -> bool:
    if error.filename is None:  # numpy's tofile gives no number either
        return error.errno in DISK or "free space" in str(error) or "requested and" in str(error)
    named = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    return named is not None and (named == draft or draft in named.parents)


@contextmanager
def change_folder(folder: Path, names: Collection[str]) -> Iterator[Path]:
    """Give a folder for drafts, which move into ``folder`` at the end; after an error, nothing has changed.

    The change is decided by one rename. Where ``folder`` was not there, that is all. Else the drafts are
    renamed to a folder in it, from where the files move to their places; who is killed on the way leaves that
    folder, and whoever comes next goes on. Of several at once, the last one's files are there in the end.

    Args:
        folder: absent, or with files of an earlier change.
        names: all that a change may write: of these, what it does not write is removed. Other files stay.
    """
    place = check_path(folder).resolve()
    with ExitStack() as stack:
        with writable(folder):
            drafts = stack.enter_context(_drafts(place))
        with writable(folder, drafts):
            yield drafts
        with writable(folder):
            _move_in(drafts, place, names)


@contextmanager
def reserved(folder: Path) -> Iterator[None]:
    """Make a folder for this process alone, say what of it cannot be written, and remove it after success.

    Args:
        folder: for work under way; after an error it stays, and the next run may go on with it.
    """
    with writable(folder, folder):
        mark = folder / ".reserved"  # the folder itself is locked for every file that is written in it
        mark.mkdir(parents=True, exist_ok=True)
        try:
            lock = _lock(mark, wait=False)
        except BlockingIOError as error:
            problem = f"{folder}: another run is at work there"
            hint = "Wait for it, or choose another place: {out}"
            raise PairNormError(problem, code="in-use", value=str(folder), hint=hint, out=...) from error
        try:
            yield
            shutil.rmtree(folder)
        finally:
            with suppress(OSError):  # there may be something to go on with
                mark.rmdir()
                folder.rmdir()
            os.close(lock)


@contextmanager
def _drafts(place: Path) -> Iterator[Path]:
    """Give a new folder for drafts of a file or folder; those of processes that are no more are removed."""
    # In the folder itself or, while there is none, in the nearest one above: moving is then renaming.
    above = next(above for above in place.parents if above.exists())
    if not above.is_dir():  # better now than when all is done
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(above))
    nearest = place if place.is_dir() else above
    drafts = nearest / f".{place.name[:40]}.{uuid4().hex[:8]}.partial"
    _clear(place, above)
    with _locked(nearest):
        drafts.mkdir()
        lock = _lock(drafts)
    try:
        yield drafts
    finally:
        os.close(lock)
        shutil.rmtree(drafts, ignore_errors=True)


def drafts_in(where: Path, place: Path) -> list[Path]:
    """Return the drafts of a folder that are under way, or that a killed process left."""
    opening = f".{place.name[:40]}."
    return [
        entry
        for entry in where.iterdir()
        if entry.name.startswith(opening) and entry.name.endswith(".partial") and entry.is_dir()
    ]


def _clear(place: Path, above: Path) -> None:
    """Remove the drafts of processes that are no more."""
    for where in (place, above):
        if where.is_dir() and os.access(where, os.R_OK | os.W_OK):
            with _locked(where):  # nobody is between making drafts and locking them
                for drafts in drafts_in(where, place):
                    if not _is_held(drafts):
                        shutil.rmtree(drafts, ignore_errors=True)


@contextmanager
def steady_folder(folder: Path) -> Iterator[None]:
    """Keep others from changing a folder while it is read; what a killed process had decided is done first.

    Args:
        folder: of ``change_folder``.
    """
    if not folder.is_dir():
        yield
        return
    try:
        lock = _lock(folder)
    except OSError as error:
        problem = f"{folder}: cannot be read ({error.strerror or error})"
        raise PairNormError(problem, code="not-readable", value=str(folder)) from error
    try:
        with writable(folder):
            _finish(folder)
        yield
    finally:
        os.close(lock)


def _move_in(drafts: Path, place: Path, names: Collection[str]) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    try:
        drafts.rename(place)  # one that is absent or empty
    except OSError:
        if not place.is_dir():
            raise
        for name in set(names) - {draft.name for draft in drafts.iterdir()}:
            (drafts / f"{name}{GONE}").touch()
        with _locked(place):
            _finish(place)
            drafts.rename(place / CHANGE)
            _finish(place)


def _finish(place: Path) -> None:
    """Move the files of a decided change to their places; whoever begins anew comes to the same end."""
    change = place / CHANGE
    if change.is_dir():
        for draft in change.iterdir():
            if draft.suffix == GONE:
                (place / draft.stem).unlink(missing_ok=True)
                draft.unlink()
            else:
                draft.replace(place / draft.name)
        change.rmdir()


def _lock(folder: Path, wait: bool = True) -> int:
    """Return an open folder, locked until it is closed, or until the process ends in whatever way."""
    try:
        import fcntl
    except ImportError:  # Windows locks no folders
        return os.open(os.devnull, os.O_RDONLY)
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    lock = _lock(folder)
    try:
        yield
    finally:
        os.close(lock)


def _is_held(folder: Path) -> bool:
    try:
        os.close(_lock(folder, wait=False))
    except FileNotFoundError:
        return False
    except OSError:  # held, or not ours
        return True
    return False
