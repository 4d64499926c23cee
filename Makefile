# `make demo` and `make test` each do all the set-up that they need on a fresh machine with Python 3.11 or newer.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-fast lint install clean

demo: install
	$(BIN)/python -m trainer.run --env code_exec

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[peers]'
	touch $@

test: lint $(VENV)/.peers
	$(BIN)/python -m pytest

test-fast: $(VENV)/.peers
	$(BIN)/python -m pytest -m 'not slow'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist *.egg-info
