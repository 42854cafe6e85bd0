# `make demo` and `make test` do all their set-up: a virtual environment in .venv, filled from the lock file.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# Tests start many processes, and each would compile the package again without written bytecode.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all fuzz bench lint format lock clean

demo: $(READY)
	$(BIN)/python -m pairnorm demo

test: $(READY) lint
	$(BIN)/python -m pytest -n auto --dist worksteal --durations=15 --durations-min=5

# An hour of damaged files, killed commands and killed Ray workers; `make fuzz MINUTES=10 SEED=7` is shorter.
MINUTES ?= 60
SEED ?= 0
fuzz: $(READY)
	$(BIN)/python tests/faults/fuzz.py --minutes $(MINUTES) --seed $(SEED)

# All tests, slow ones included, on every installed Python, and once with the oldest versions in pyproject.toml.
test-all: $(READY)
	$(BIN)/python -m nox

bench: $(READY)
	$(BIN)/python -m benchmarks

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Resolve pyproject.toml again; torch is pinned so that pip finds the CPU build.
lock:
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet -e '.[dev]'
	$(BIN)/pip freeze --exclude-editable | sed 's/^torch==2.13.0.*/torch==2.13.0/' > requirements.lock

$(READY): requirements.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -r requirements.lock
	$(BIN)/pip install --quiet --no-deps --no-build-isolation -e .
	touch $@

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache
