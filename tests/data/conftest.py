"""Small graphs, and the real ones where they are at hand."""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from pairnorm.data import Graph, load

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its own doing: PyG scripts a class when it is imported
    import torch_geometric  # noqa: F401

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def data_root() -> Path:
    root = os.environ.get("PAIRNORM_DATA")
    if not root:
        pytest.skip("PAIRNORM_DATA is not set: the raw files of the real graphs are not at hand")
    return Path(root)


@pytest.fixture(scope="session")
def cora() -> Graph:
    return load("cora")


@pytest.fixture
def small() -> Graph:
    """A path of five nodes: two classes, one unknown label, a zero row, a negative feature."""
    return Graph.from_edges(
        [[0, 1, 2, 3], [1, 2, 3, 4]],
        [[1.0, 3.0, 0.0], [0.0, 0.0, 0.0], [2.0, 0.0, -2.0], [0.0, 5.0, 0.0], [1.0, 1.0, 2.0]],
        [0, 0, 1, 1, -1],
        train=torch.tensor([True, False, True, False, False]),
        validation=torch.tensor([False, True, False, False, False]),
        test=torch.tensor([False, False, False, True, False]),
        class_names=("cat", "dog"),
        name="small",
    )


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fresh PostgreSQL server with the table ``people``, run as an ordinary user."""
    psycopg = pytest.importorskip("psycopg")
    places = [*map(Path, os.environ["PATH"].split(":")), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    found = next((place for place in reversed(places) if (place / "initdb").is_file()), None)
    if found is None:
        pytest.skip("PostgreSQL is not installed: apt-get install postgresql")
    user = next((name for name in ("postgres", "nobody") if _exists(name)), None)
    as_user = ["runuser", "-u", user, "--"] if os.geteuid() == 0 and user else []
    folder = Path(
        tempfile.mkdtemp(dir="/tmp", prefix="pg")
    )  # a socket's path is short, and the user may enter
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def call(*words: object) -> None:
        subprocess.run([*as_user, *map(str, words)], check=True, capture_output=True, cwd="/", timeout=60)

    try:
        if as_user:
            shutil.chown(folder, user)
        call(found / "initdb", "--auth", "trust", "-U", "tester", "-D", folder / "data")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        call(found / "pg_ctl", "-w", "-D", folder / "data", "-l", folder / "log", "-o", options, "start")
        try:
            address = f"127.0.0.1:{port}/postgres"
            with psycopg.connect(f"postgresql://tester@{address}") as connection:
                connection.execute("CREATE TABLE people (id BIGINT, x NUMERIC(9, 2), city TEXT, born DATE)")
                connection.execute(
                    "INSERT INTO people VALUES (9007199254740993, 1.25, 'Bonn', '2001-02-03'), "
                    "(7, NULL, 'a:b %s', NULL)"
                )
            yield f"postgresql://tester:secret@{address}"
        finally:
            call(found / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
