"""Servers that stop answering or send random bytes cause an error within a time limit."""

import socket
from contextlib import suppress
from random import Random
from urllib.parse import urlsplit

import pytest
from servers import forward, log_in, served

from pairnorm import cli
from pairnorm.data.formats import open_tables


@pytest.fixture(autouse=True)
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr("pairnorm.base.databases.CONNECT_SECONDS", 2)
    monkeypatch.setattr("pairnorm.base.databases.SILENCE_SECONDS", 0.5)


def test_server_silent_after_login_times_out(raises):
    with served(log_in) as port, raises("database-error") as caught:
        open_tables("nodes", "people", database=f"postgresql://ann:secret@127.0.0.1:{port}/bank")
    assert "sent nothing for" in str(caught.value)


@pytest.mark.parametrize("seed", range(5))
def test_server_sending_random_bytes_raises(raises, seed):
    def talk(client: socket.socket) -> None:
        with suppress(OSError):
            if seed % 2:
                log_in(client)
            client.sendall(Random(seed).randbytes(5000))

    with served(talk) as port, raises("database-error"):
        open_tables("nodes", "people", database=f"postgresql://ann@127.0.0.1:{port}/bank")


def test_url_parameter_sets_the_timeout(raises):
    with served(log_in) as port, raises("database-error") as caught:
        database = f"postgresql://ann@127.0.0.1:{port}/bank?read_timeout=1&connect_timeout=3"
        open_tables("nodes", "people", database=database)
    assert "sent nothing for 1 s" in str(caught.value)
    with raises("not-a-time", value="soon"):
        open_tables("nodes", "people", database="postgresql://ann@127.0.0.1:1/bank?read_timeout=soon")


QUERY = "SELECT i AS id, repeat('x', 50) AS text FROM generate_series(1, 20000) i"


@pytest.mark.parametrize("count", [500, 1000, 2000, 200_000])
def test_server_stopping_midway_times_out(raises, postgresql, count):
    address = urlsplit(postgresql)
    with served(forward((address.hostname, address.port), count)) as port, raises("database-error") as caught:
        open_tables("nodes", QUERY, database=f"postgresql://tester@127.0.0.1:{port}/postgres")
    assert "sent nothing for" in str(caught.value)


def test_answer_in_many_packets_is_read_completely(postgresql):
    address = urlsplit(postgresql)
    with served(forward((address.hostname, address.port), 10**9)) as port:
        (table,) = open_tables("nodes", QUERY, database=f"postgresql://tester@127.0.0.1:{port}/postgres")
    assert len(table.frame) == 20_000


def test_locked_table_times_out(corpus, postgresql, capsys):
    import psycopg

    words = ["predict", "--run", str(corpus / "run"), "--nodes", str(corpus / "nodes.csv")]
    words += ["--edges", str(corpus / "edges.csv"), "--out", postgresql]
    with psycopg.connect(postgresql) as other:
        other.execute("CREATE TABLE predictions (id TEXT)")
        other.commit()
        other.execute("LOCK TABLE predictions")
        assert cli.main(words) == 1
        other.rollback()
        assert "sent nothing for" in capsys.readouterr().err
        assert cli.main(words) == 0
        assert other.execute("SELECT count(*) FROM predictions").fetchone() == (100,)
