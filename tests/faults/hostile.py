"""Run as a program: commands in hostile surroundings, the same for the same seed.

A strategy prepares its case in a fork of this process, and gives the command line that is then run there.
"""

import fcntl
import io
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from servers import log_in, served
from stage import forked, import_late
from watchdog import Tally

from pairnorm import cli
from pairnorm.base import databases, files

MARKER = "MARKER77"
LONGEST = 300.0
FIGURES = (".png", ".pdf", ".svg", ".html")
EXPECTED = {0, 1, 2, 130, 141, 143}

Strategy = Callable[[Path, Path, Random], Iterator[list[str]]]


def command(corpus: Path, out: Path, random: Random) -> list[str]:
    """Return a short command that reads the corpus and writes below ``out``; its values follow options."""
    graph = ["--nodes", f"{corpus}/nodes.csv", "--edges", f"{corpus}/edges.csv"]
    quick = ["--model", "SGC", "--depth", "1", "--norm", "none", "--no-baselines"]
    trained = ["--method", "none", "--depth", "2", "--runs", "1", "--epochs", "1", "--workers", "1"]
    return random.choice(
        (
            ["fit", *graph, "--label", "risk", *quick, "--out", f"{out}/run"],
            ["fit", "--graph", f"{corpus}/packed", "--depth", "1", "--norm", "PN", "--out", f"{out}/fitted"],
            ["predict", "--run", f"{corpus}/run", *graph, "--out", f"{out}/p.csv"],
            [
                "predict",
                "--run",
                f"{corpus}/run",
                *graph,
                "--out",
                f"{out}/p.json",
                "--explain",
                f"{out}/e.csv",
            ],
            ["diagnose", *graph, "--out", f"{out}/diagnosis{random.choice(FIGURES)}"],
            ["pack", *graph, "--label", "risk", "--memory", "300MB", "--out", f"{out}/packed"],
            ["compare", *graph, "--label", "risk", *trained, "--out", f"{out}/comparison"],
        )
    )


def value_of(words: list[str], random: Random, *options: str) -> int:
    """Return the position of the value of one of the options."""
    return random.choice([position + 1 for position, word in enumerate(words) if word in options])


def special_file(path: Path, random: Random) -> Path:
    """Create a special file at a path, or return a device."""
    kind = random.choice(
        ("fifo", "socket", "loop", "dangling", "device link", "folder", "device", "empty", "odd")
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        path.unlink()
    device = random.choice(
        ("/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "/dev/fd/0", "/proc/self/mem")
    )
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        socket.socket(socket.AF_UNIX).bind(str(path))
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "dangling":
        path.symlink_to(path.with_name("nothing"))
    elif kind == "device link":
        path.symlink_to(device)
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "odd":
        return path.with_name(os.fsdecode(random.choice((b"\xff\xfe.csv", b"a\nb.csv", b"x" * 300))))
    return Path(device) if kind == "device" else path


def special_inputs(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """A FIFO, a device, a loop of links and the like in place of a file that is read."""
    own = Path(shutil.copytree(corpus, folder / "files"))
    words = command(own, folder / "out", random)
    position = value_of(words, random, "--nodes", "--edges", "--run", "--graph")
    victim = Path(words[position])
    if victim.is_dir():
        special_file(random.choice(sorted(path for path in victim.iterdir() if path.is_file())), random)
    else:
        words[position] = str(special_file(victim, random))
    yield words


def special_outputs(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """The same in place of what is written, or of a folder above it."""
    words = command(corpus, folder / "out", random)
    position = value_of(words, random, "--out", "--explain")
    target = Path(words[position])
    made = special_file(target if random.random() < 0.7 else target.parent, random)
    words[position] = str(made if made.name != "out" else target)
    if words[0] == "predict" and random.random() < 0.4:
        words[position] = f"{random.choice(('sqlite', 'duckdb'))}:///{words[position]}"
    yield words


def locks(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """Another process holds a lock on what is read or written, or on a folder above it."""
    own = Path(shutil.copytree(corpus, folder / "files"))
    words = command(own, folder / "out", random)
    path = Path(words[value_of(words, random, "--out", "--run", "--graph", "--nodes")])
    if not path.suffix and random.random() < 0.5:
        path.mkdir(parents=True, exist_ok=True)
    held = next(above for above in (path, *path.parents) if above.exists())
    files.LOCK_SECONDS = 0.3
    descriptor = os.open(held, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield words
    os.close(descriptor)


def servers(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """A database server that accepts, and sends nothing, nonsense, or stops after the login."""
    nonsense = random.choice((b"", b"N", b"S", b"E", random.randbytes(9), random.randbytes(9000)))

    def talk(client: socket.socket) -> None:
        with io.BytesIO(), ExitStack():
            if knows_protocol:
                log_in(client)
            client.sendall(nonsense)
            if hangs_up:
                client.close()

    knows_protocol, hangs_up = random.random() < 0.5, random.random() < 0.3
    databases.CONNECT_SECONDS, databases.SILENCE_SECONDS = 2, 0.5
    with served(talk) as port:
        yield with_database(corpus, folder, f"postgresql://ann:{MARKER}@127.0.0.1:{port}/bank", random)


def with_database(corpus: Path, folder: Path, url: str, random: Random) -> list[str]:
    """Return a command that reads from a database, or writes to it."""
    words = command(corpus, folder / "out", random)
    while ("--run" not in words and "--label" not in words) or words[0] == "pack":
        words = command(corpus, folder / "out", random)
    if words[0] == "predict" and random.random() < 0.5:
        words[value_of(words, random, "--out", "--explain")] = url
        return words
    for option in ("--nodes", "--edges"):
        words[words.index(option) + 1] = random.choice(("people", "SELECT 1 AS id", "\udcff", "", "select '"))
    return [*words, "--database", url]


def passwords(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """An invalid URL with a password, which no output may contain."""
    scheme = random.choice(
        ("postgresql", "postgres", "mysql", "sqlite", "duckdb", "nosuch", "", "http", "mssql+pyodbc")
    )
    user = random.choice(("ann", "", "a%40b", "a@b"))
    host = random.choice(
        ("127.0.0.1:1", "127.0.0.1:notaport", "[bad", "", "[::1]:1", "h\x00st", "nowhere.invalid")
    )
    secret = random.choice(
        (MARKER, f"x@{MARKER}", f"{MARKER}/y", f"a b {MARKER}", f"%2F{MARKER}", f"'{MARKER}")
    )
    more = random.choice(
        ("", "?connect_timeout=1", f"?password={MARKER}", f"?sslkey={MARKER}", "?read_timeout=x", "?\udcff=1")
    )
    databases.CONNECT_SECONDS = 2
    url = random.choice(
        (f"{scheme}://{user}:{secret}@{host}/bank{more}", f"{scheme}:///x?odbc_connect=PWD%3D{MARKER}")
    )
    words = with_database(corpus, folder, url, random)
    if random.random() < 0.2:
        words.append("--debug")
    yield words


def environments(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """A home, a working directory or another folder that does not exist, or a closed stream."""
    words, removed = command(corpus, folder / "out", random), folder / "gone"
    for name in random.sample(
        ("HOME", "TMPDIR", "XDG_CACHE_HOME", "MPLCONFIGDIR", "PAIRNORM_DATA", "PATH"), 3
    ):
        if random.random() < 0.3:
            os.environ.pop(name, None)
        else:
            os.environ[name] = random.choice((str(removed), "", "/dev/null", "/proc", "\udcff", "relative"))
    if random.random() < 0.4:
        removed.mkdir()
        os.chdir(removed)
        removed.rmdir()
    stream = random.choice((None, None, 0, 1, 2))
    if stream is not None:
        os.close(stream)
        setattr(sys, ("stdin", "stdout", "stderr")[stream], None)
    if random.random() < 0.2 and stream != 1:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8")
    if random.random() < 0.2:
        words[value_of(words, random, "--out")] = random.choice(("-", "relative.csv", "~/x", ".", ".."))
    yield words


def standard_input(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """Tables on a standard input that is nonsense, nested without end, a bomb, or never ends."""
    words = command(corpus, folder / "out", random)
    while words[0] == "pack" or "--graph" in words:
        words = command(corpus, folder / "out", random)
    read, write = os.pipe()
    if not os.fork():  # the other end of the pipe
        block = random.choice(
            (b"", b"[" * 100_000, b'{"a":' * 50_000, b"\n", b"\x1f\x8b\x08", b"id,x\n", b"\xff\xfe")
        )
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for _ in range(random.choice((1, 1, 3000))):
            os.write(write, block + random.randbytes(9))
        os._exit(0)
    os.close(write)
    os.dup2(read, 0)
    sys.stdin = os.fdopen(0, encoding="utf-8")
    for option in random.sample(("--nodes", "--edges"), random.choice((1, 2))):
        words[words.index(option) + 1] = "-"
    yield [*words, "--memory", "200MB"]


def full_disks(corpus: Path, folder: Path, random: Random) -> Iterator[list[str]]:
    """A disk with little room, a limit on the size of a file, or a read-only folder."""
    out, room = folder / "out", random.randrange(64) << 10
    out.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={(room >> 10) + 4}k", "tmpfs", str(out)]
    if random.random() < 0.4:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
        yield command(corpus, out, random)
    elif not os.geteuid() and subprocess.run(mount, capture_output=True).returncode == 0:
        try:
            if random.random() < 0.3:
                subprocess.run(["mount", "-o", "remount,ro", str(out)], check=True)
            yield command(corpus, out, random)
        finally:
            subprocess.run(["umount", "-l", str(out)], check=True)


STRATEGIES: dict[str, Strategy] = {
    "special inputs": special_inputs,
    "special outputs": special_outputs,
    "locks": locks,
    "servers": servers,
    "passwords": passwords,
    "environments": environments,
    "standard input": standard_input,
    "full disks": full_disks,
}


def attempt(kind: str, corpus: Path, folder: Path, seed: object) -> dict[str, Any]:
    """Run one case in a fork, and return its outcome: read, refused, or a failure."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shown = folder.with_suffix(".shown")

    def work() -> int:
        os.chdir(folder)
        os.environ["TMPDIR"] = str(folder)
        for stream in (1, 2):
            os.dup2(os.open(shown, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND), stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", encoding="utf-8") for stream in (1, 2))
        spare = os.dup(2)  # a case may close the streams
        case = contextmanager(STRATEGIES[kind])(corpus, folder, Random(f"{kind} {seed}"))
        try:
            with case as words:
                os.write(spare, f"{words!r}\n".replace(MARKER, "…").encode())
                sys.argv = ["pairnorm", *words]
                return cli.main(words)
        except BaseException:
            os.write(spare, traceback.format_exc().encode("utf-8", "backslashreplace"))
            return 99

    start = time.monotonic()
    code = forked(work, LONGEST, quiet=False)
    text = shown.read_text("utf-8", "backslashreplace")
    left = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    outcome, is_debug = "read" if code == 0 else "refused", "'--debug'" in text
    if code is None:
        outcome = "hang"
    elif code < 0:
        outcome = "crash"
    elif code not in EXPECTED or ("Traceback" in text and not is_debug):
        outcome = "traceback"
    elif MARKER in text or any(MARKER.encode() in path.read_bytes() for path in left):
        outcome = "password shown"
    elif any(".partial" in str(path) for path in left):
        outcome = "draft left"
    elif len(text.partition("Error:")[2]) > 1500 and not is_debug:
        outcome = "long message"
    detail = "" if outcome in ("read", "refused") else f"exit code {code}\n{text[-3000:]}"
    seconds = time.monotonic() - start
    return {"kind": kind, "seed": str(seed), "outcome": outcome, "detail": detail, "seconds": seconds}


def campaign(corpus: Path, folder: Path, seed: object, cases: int, seconds: float = 1e9) -> Tally:
    """Try strategies in turn until there are enough cases or time is up; the corpus must stay as it is."""
    tally, end, before = Tally(), time.monotonic() + seconds, contents(corpus)
    kinds = list(STRATEGIES)
    while tally.attempts < cases and time.monotonic() < end:
        number = tally.attempts
        answer = attempt(kinds[number % len(kinds)], corpus, folder, f"{seed}/{number}")
        if contents(corpus) != before:
            answer |= {"outcome": "lost", "detail": "an input has changed"}
        tally.add(answer)
    return tally


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the files of a folder."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


if __name__ == "__main__":
    import_late()
    where, work, seed, cases, limit = sys.argv[1:]
    tally = campaign(Path(where), Path(work), seed, int(cases), float(limit))
    print(json.dumps({"outcomes": tally.outcomes, "failures": tally.failures}))
