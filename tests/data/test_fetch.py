from hashlib import sha256
from pathlib import Path
from urllib.error import URLError

import pytest

from pairnorm.data import fetch as module
from pairnorm.data import load
from pairnorm.data.checksums import SHA256
from pairnorm.data.fetch import fetch
from pairnorm.errors import PairNormError

NAME = "Coauthor/CS/raw/ms_academic_cs.npz"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(module, "urlopen", refuse)


@pytest.mark.usefixtures("offline")
def test_without_a_network_the_error_says_which_files_are_wanted_where(tmp_path: Path) -> None:
    with pytest.raises(PairNormError) as caught:
        load("citeseer", tmp_path)
    message = str(caught.value)
    assert str(tmp_path / "Planetoid" / "CiteSeer" / "raw") in message
    assert all(f"ind.citeseer.{piece}" in message for piece in ("x", "allx", "graph", "test.index"))
    assert "Name or service not known" in message
    assert "PAIRNORM_DATA" in message
    assert message.count("\n") <= 2
    assert not list(tmp_path.iterdir())


def test_an_address_that_never_answers_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from threading import Event

    monkeypatch.setattr(module, "SECONDS", 0.01)
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Event().wait(5))
    with pytest.raises(PairNormError, match=r"no answer within 0\.02 seconds"):
        fetch(tmp_path, [NAME], "https://example.org")


class Reply:
    def __init__(self, contents: bytes) -> None:
        self.contents = contents

    def __enter__(self) -> "Reply":
        return self

    def __exit__(self, *_: object) -> None: ...

    def read(self) -> bytes:
        return self.contents


def test_what_comes_is_kept_only_if_it_is_the_right_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    with pytest.raises(PairNormError, match="what came is not the file"):
        fetch(tmp_path, [NAME], "https://example.org")
    assert not (tmp_path / NAME).exists()
    monkeypatch.setitem(SHA256, NAME, sha256(b"graph").hexdigest())
    fetch(tmp_path, [NAME], "https://example.org")
    assert [path.name for path in (tmp_path / NAME).parent.iterdir()] == ["ms_academic_cs.npz"]
    assert (tmp_path / NAME).read_bytes() == b"graph"


@pytest.mark.usefixtures("offline")
def test_files_that_are_there_are_not_fetched(tmp_path: Path) -> None:
    (tmp_path / NAME).parent.mkdir(parents=True)
    (tmp_path / NAME).touch()
    fetch(tmp_path, [NAME], "https://example.org")


def test_a_folder_that_cannot_be_written_leads_to_the_same_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "urlopen", lambda *_, **__: Reply(b"graph"))
    monkeypatch.setitem(SHA256, NAME, sha256(b"graph").hexdigest())
    (tmp_path / "Coauthor").touch()
    with pytest.raises(PairNormError, match=r"(?s)cannot be written.*PAIRNORM_DATA"):
        fetch(tmp_path, [NAME], "https://example.org")
