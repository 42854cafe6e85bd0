"""``make test`` on every Python of this machine, and once with the oldest core that the metadata claim."""

import tomllib
from pathlib import Path

import nox

PROJECT = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

nox.options.default_venv_backend = "venv"
nox.options.error_on_missing_interpreters = False


def _test(session: nox.Session) -> None:
    session.run(
        "python",
        "-m",
        "pytest",
        *(session.posargs or ["-m", "slow or not slow", "-n", "auto", "--dist", "worksteal"]),
    )


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Run lint and tests as ``make test`` does, with the newest of everything that installs."""
    session.install("-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("lint-imports", "--no-logo")
    _test(session)


@nox.session(python=PYTHONS[0])
def oldest(session: nox.Session) -> None:
    """Run the tests with the lower bounds of the core; skipped where these do not install here."""
    lower = [requirement.replace(">=", "==") for requirement in PROJECT["dependencies"]]
    done = session.run(
        "python", "-m", "pip", "install", "-e", ".[dev]", *lower, success_codes=[0, 1], silent=True
    )
    if "ERROR" in str(done):
        session.skip(f"{', '.join(lower)} cannot be installed here")
    _test(session)
