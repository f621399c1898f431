# Two commands matter: `make demo` and `make check`. Both start from nothing but python3, make and gcc.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: help demo check format lint types test test-slow kernels bench clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

check: $(INSTALLED) lint types test  ## format check, lint, types and all fast tests: what CI runs

lint: $(INSTALLED)  ## format check and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(INSTALLED)  ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: $(INSTALLED)  ## strict type check of src/stompp/core
	$(BIN)/mypy

test: $(INSTALLED)  ## all fast tests and doctests
	$(BIN)/python -m pytest -n auto

test-slow: $(INSTALLED)  ## the tests that take minutes
	$(BIN)/python -m pytest -n auto -m slow

clean:  ## remove everything that was built or trained here, the environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
