"""Connect to databases with time limits, since a server may fall silent, and explain errors of DuckDB."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from pairnorm.base.errors import PairNormError, parse_duration
from pairnorm.base.memory import size

CONNECT_SECONDS = 10
"""Time limit for connecting to a database server."""
SILENCE_SECONDS = 600
"""Time after which a server that sends nothing is given up; ``?read_timeout=3600`` in a URL replaces it."""
SERVERS = ("postgresql", "mysql", "mariadb")


def open_engine(url: Any, **settings: Any) -> Any:
    """Return SQLAlchemy's engine for a URL, with time limits that the URL may replace.

    Args:
        url: parsed by SQLAlchemy.
        **settings: ``connect_args`` and others of ``sqlalchemy.create_engine``.
    """
    import sqlalchemy

    backend = url.get_backend_name()
    limits = {"connect_timeout": CONNECT_SECONDS} if backend in SERVERS else {}
    if limits and (url.get_driver_name() == "psycopg" or backend != "postgresql"):
        limits["read_timeout"] = SILENCE_SECONDS
    limits = {name: seconds for name, seconds in limits.items() if name not in url.query}
    settings["connect_args"] = limits | settings.get("connect_args", {})
    engine = sqlalchemy.create_engine(url, **settings)
    if engine.dialect.driver == "psycopg":
        sqlalchemy.event.listen(engine, "do_connect", _connect)
    return engine


def _connect(dialect: Any, record: Any, arguments: list[Any], settings: dict[str, Any]) -> Any:
    """Connect to PostgreSQL, whose library has no time limit for answers."""
    import psycopg

    limit = parse_duration("read_timeout", settings.pop("read_timeout"))

    class Connection(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **more: Any) -> Any:
            return super().wait(_limit_silence(gen, limit, self.close), *args, **more)

    return Connection.connect(*arguments, **settings)


def _limit_silence(
    steps: Generator[Any, Any, Any], limit: float, close: Callable[[], None]
) -> Generator[Any, Any, Any]:
    """Pass on the steps of an answer, each resumed with whether data came; raise an error after a silence."""
    import psycopg

    last = time.monotonic()
    try:
        state = next(steps)
        while True:
            ready = yield state
            now = time.monotonic()
            if ready:
                last = now
            elif now - last > limit:
                close()
                problem = f"the server has sent nothing for {limit:.0f} s; allow more by ?read_timeout=3600"
                raise psycopg.OperationalError(problem)
            state = steps.send(ready)
    except StopIteration as end:
        return end.value


@contextmanager
def explain_duckdb_errors(memory: int) -> Iterator[None]:
    """Convert errors of DuckDB to ``PairNormError``."""
    import duckdb

    try:
        yield
    except duckdb.Error as error:
        problem = " ".join(str(error).split())[:300]
        more: dict[str, Any] = {}
        code, hint = "file-damaged", "Correct the file, or free the disk if it is full."
        if isinstance(error, duckdb.OutOfMemoryException):
            more = {"value": memory, "memory": size(2 * memory)}
            code, hint = "too-large", "Allow {memory}."
        elif "Maximum line size" in problem:
            code, hint = "memory-limit", "Check the file: the end of a quoted cell may be missing."
        elif isinstance(error, duckdb.IOException) and "write" in problem:
            code, hint = "not-writable", "Make room on the disk, or choose another place."
            problem = f"what is under way cannot be written ({problem})"
        raise PairNormError(problem, code=code, hint=hint, **more) from error
