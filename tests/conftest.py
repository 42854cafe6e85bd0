"""Shared by all tests: one thread, a context that expects an error code, a browser, and PostgreSQL."""

import json
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

# Before numpy and torch come, and for the processes of tests: threads that wait for a busy core are slow.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
from _pytest.capture import CaptureResult

from pairnorm.base import errors
from pairnorm.base.csr import suppress_csr_warning
from pairnorm.base.errors import PairNormError

sys.path.insert(0, str(Path(__file__).parent))  # for helpers.py
suppress_csr_warning()  # tests create CSR tensors

EXPENSIVE_FIXTURES = {"cluster", "check_ranks", "corpus", "postgresql", "wheel"}
LONG_TESTS = {"test_kernels_in_the_interpreter"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests with expensive fixtures and long tests first.

    Work is stolen from the end, so that no two workers make one fixture each, and no core idles in the end.
    """
    first = EXPENSIVE_FIXTURES | LONG_TESTS
    items.sort(key=lambda item: first.isdisjoint([item.name, *getattr(item, "fixturenames", ())]))


Run = Callable[..., CaptureResult[str]]


@pytest.fixture
def pairnorm(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line, check its exit code, and return what it printed."""
    from pairnorm import cli

    def run(*words: object, code: int = 0) -> CaptureResult[str]:
        capsys.readouterr()
        assert cli.main([str(word) for word in words]) == code
        return capsys.readouterr()

    return run


Raises = Callable[..., AbstractContextManager[pytest.ExceptionInfo[PairNormError]]]


@pytest.fixture
def raises() -> Raises:
    """Expect a PairNormError with a code, about a place such as a line, and with fields where they are given.

    ``with raises("unknown-column", "nodes.csv", value="agee") as caught: ...``
    """

    @contextmanager
    def expect(code: str, where: str = "", **fields: object) -> Iterator[pytest.ExceptionInfo[PairNormError]]:
        with pytest.raises(PairNormError) as caught:
            yield caught
        assert caught.value.code == code, caught.value
        assert caught.value.problem.startswith(where), caught.value
        for name, expected in fields.items():
            assert getattr(caught.value, name) == expected, caught.value

    return expect


@pytest.fixture(autouse=True)
def no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the passwords registered by other tests, which would be masked in all output."""
    monkeypatch.setattr(errors, "_secrets", set())


@pytest.fixture(scope="module")
def brief_baselines() -> Iterator[None]:
    """Train the GCN baseline of ``fit`` for a few epochs, for tests that do not check its accuracy."""
    from pairnorm.classify import search_space

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_space, "BASELINE_EPOCHS", 5)
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser driven by playwright; without one, its tests are skipped."""
    result = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if result is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="there is no playwright to drive a browser"
    )
    with playwright.sync_playwright() as driver:
        root = hasattr(os, "geteuid") and os.geteuid() == 0
        # Under root a sandbox cannot be had, and a container's /dev/shm is small.
        arguments = ["--no-sandbox"] * root + ["--disable-dev-shm-usage"]
        running = driver.chromium.launch(executable_path=result, args=arguments)
        yield running
        running.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file in the browser; console errors and network requests fail the test."""
    contexts, complaints = [], []

    def opened(path: Path, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda sent: sent.url.startswith("http") and complaints.append(sent.url))
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready]", timeout=60_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="session")
def check_ranks() -> Iterator[Callable[[str, int], None]]:
    """Run a check in the processes of one gloo group; see ``ranks.py``."""
    program = [sys.executable, "-W", "error", str(Path(__file__).with_name("ranks.py"))]
    server = subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
    )

    def check(name: str, size: int) -> None:
        server.stdin.write(f"{name} {size}\n")
        answers, *_ = select.select([server.stdout], [], [], 300)
        assert answers, "the ranks hang"
        assert json.loads(server.stdout.readline()) == ""

    yield check
    with suppress(ProcessLookupError):
        os.killpg(server.pid, signal.SIGKILL)
    server.communicate()


@pytest.fixture
def edge_index() -> "Any":
    """An undirected graph of 20 nodes: a hub, random edges, and two isolated nodes at the end."""
    import torch

    random = torch.randint(0, 18, (2, 25), generator=torch.Generator().manual_seed(1))
    hub = torch.stack([torch.zeros(12, dtype=torch.long), torch.arange(1, 13)])
    edges = torch.cat([random[:, random[0] != random[1]], hub], 1)
    return torch.unique(torch.cat([edges, edges.flip(0)], 1), dim=1)


@pytest.fixture(scope="session")
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a fresh PostgreSQL server with the table ``people``, run as an ordinary user."""
    psycopg = pytest.importorskip("psycopg")
    folders = [*map(Path, os.environ["PATH"].split(":")), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    result = next((path for path in reversed(folders) if (path / "initdb").is_file()), None)
    if result is None:
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
        call(result / "initdb", "--auth", "trust", "-U", "tester", "-D", folder / "data")
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        call(result / "pg_ctl", "-w", "-D", folder / "data", "-l", folder / "log", "-o", options, "start")
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
            call(result / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
