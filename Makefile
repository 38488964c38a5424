# `make demo` and `make test` work as the first command after `git clone`, on a machine with git, make and Python 3.11 or
# newer. They make .venv with uv where uv is there, else with venv and pip.

PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { command -v $$p; break; }; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test long cheats check lint types bench clean

demo: $(VENV)/.installed ## Run a small race: three scripts make a slow program faster
	@$(BIN)/race run benchmarks/primes/demo.toml

test: $(VENV)/.installed-dev ## Run the test suite
	@$(BIN)/python -m pytest -n 6 --dist worksteal  # they wait more than they work

long: $(VENV)/.installed-dev ## Run the tests that take longer: every promise of every provider, many kills
	@$(BIN)/python -m pytest -n 4 -m long

cheats: $(VENV)/.installed-dev ## Run all known cheats, and honest submissions, as real races
	@$(BIN)/python -m benchmarks.cheats

check: lint types test long cheats ## All that CI runs

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(VENV)/.installed-dev
	@$(BIN)/mypy
	@$(BIN)/pyright

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache

$(VENV)/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed; name one with: make PYTHON=..." >&2; exit 3; }
	@if command -v uv >/dev/null 2>&1; then uv venv -q --python "$(PYTHON)" $(VENV); \
	else "$(PYTHON)" -m venv $(VENV) || { echo "the module venv is needed (on Debian: apt install python3-venv)" >&2; exit 3; }; fi

# Installing is repeated when what is to be installed has changed.
$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) ..."
	@if command -v uv >/dev/null 2>&1; then uv pip install -q --python $(BIN)/python -e .; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check -e .; fi
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) ..."
	@if command -v uv >/dev/null 2>&1; then uv pip install -q --python $(BIN)/python -e . --group dev; \
	else $(BIN)/python -m pip install -q --disable-pip-version-check --upgrade pip \
	&& $(BIN)/python -m pip install -q --disable-pip-version-check -e . --group dev; fi
	@touch $@ $(VENV)/.installed
