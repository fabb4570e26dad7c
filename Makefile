# Every target sets up .venv by itself.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all every-float lint bench clean

demo: $(VENV)/.ready
	$(BIN)/python examples/demo.py

test: $(VENV)/.ready
	$(BIN)/python -m pytest -m "not slow"

test-all: $(VENV)/.ready
	$(BIN)/python -m pytest

# the errors of the elementary functions, proved: 20 minutes on two cores
every-float: $(VENV)/.ready
	$(BIN)/python -m pytest -m slow -rP tests/targets/cpu_runtime/test_every_float.py

bench: $(VENV)/.bench
	$(BIN)/python benchmarks/results.py
	$(BIN)/python benchmarks/solver.py

lint: $(VENV)/.lint
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/pyright

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fissile needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test]'
	touch $@

$(VENV)/.bench: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[bench]'
	touch $@

$(VENV)/.lint: $(VENV)/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[lint]'
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
