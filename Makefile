# Two commands matter: `make demo` and `make check`. Both start from nothing but python3, make and gcc.

PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
INSTALLED = $(VENV)/.installed

.PHONY: help demo check format lint types test test-slow kernels wheels sanitize results clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

# The kernels are compiled where there is a C++ compiler; without one, packed nets run in numpy and their tests say so.
KERNELS = $(VENV)/.kernels

$(KERNELS): $(INSTALLED) kernels/pyproject.toml kernels/CMakeLists.txt $(wildcard kernels/src/* kernels/python/*/*.py)
	@if command -v $${CXX:-c++} >/dev/null; then \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check ./kernels && echo "kernels: compiled and installed" \
	    && touch $@; \
	else \
	  echo "kernels: there is no C++ compiler here (c++, or CXX); packed nets will run in numpy, slowly"; \
	fi

kernels: $(KERNELS)  ## compile and install the kernels for packed nets

# LeakSanitizer reports what CPython itself keeps; the fuzz target measures memory instead.
SANITIZED = build/sanitized
FUZZ_FILES ?= 10000
sanitize: $(INSTALLED)  ## kernel tests and the fuzz target with the kernels under ASan and UBSan; FUZZ_FILES=100000 for all
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(SANITIZED) \
	  -C cmake.define.STOMPP_SANITIZE=ON -C build-dir=$(SANITIZED)-objects ./kernels
	export LD_PRELOAD="$$(gcc -print-file-name=libasan.so) $$(gcc -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0:quarantine_size_mb=16 UBSAN_OPTIONS=print_stacktrace=1 PYTHONPATH=$(SANITIZED) && \
	$(BIN)/python -m pytest tests/test_deploy_kernels.py tests/test_deploy_format.py tests/test_deploy_runtime.py && \
	$(BIN)/python tests/fuzz_packed.py --files $(FUZZ_FILES) --seed 1 --processes 2 $(if $(FUZZ_OUT),--out $(FUZZ_OUT))

# Each wheel is built and tried by its own Python, in an environment that has numpy and the two wheels alone.
PYTHONS ?= python3.10 python3.11 python3.12 python3.13
wheels:  ## build wheels of both distributions for every Python 3.10 to 3.13 there is, and try each with numpy alone
	rm -rf dist
	for python in $(PYTHONS); do \
	  $$python -c 1 2>/dev/null || { echo "$$python: not here, left out"; continue; }; \
	  rm -rf build/wheel-env && $$python -m venv build/wheel-env && \
	  build/wheel-env/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w dist . ./kernels && \
	  tag=$$($$python -c "import sys; print('cp%d%d' % sys.version_info[:2])") && \
	  build/wheel-env/bin/python -m pip install --quiet --disable-pip-version-check numpy && \
	  build/wheel-env/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	    dist/stompp-*-py3-none-any.whl dist/stompp_kernels-*-$$tag-*.whl && \
	  build/wheel-env/bin/python tests/try_wheel.py || exit 1; \
	done

demo: $(KERNELS)  ## train float, STE and StoMPP nets on bundled digits, explained; report and packed net in demo/
	$(BIN)/stompp demo --out demo

check: $(KERNELS) lint types test  ## format check, lint, types and all fast tests: what CI runs

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

results: $(INSTALLED)  ## write docs/results.md, the README's table and the figures from results/
	$(BIN)/python -m stompp.experiments.publish

clean:  ## remove everything that was built or trained here, the environment included
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis demo
