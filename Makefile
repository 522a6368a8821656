# `make demo` and `make test` do everything on a fresh machine with Python 3.11.
SHELL := /bin/bash
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .stamps

.DEFAULT_GOAL := help
.PHONY: help demo demo-hang test test-all gauntlet gauntlet-hangs gauntlet-healthy check format lint types contracts clean

help: ## what the targets do
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

# torch first and by itself: a plain `torch` would take a CUDA build of several GB.
$(STAMPS)/venv: pyproject.toml
	@mkdir -p $(STAMPS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0 numpy
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(STAMPS)/tests: $(STAMPS)/venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[test,dev]'
	@touch $@

$(STAMPS)/chromium:
	@mkdir -p $(STAMPS)
	command -v chromium >/dev/null || { apt-get update -qq && apt-get install -y -qq chromium >/dev/null; }
	command -v tc >/dev/null || apt-get install -y -qq iproute2 >/dev/null
	@touch $@

demo: $(STAMPS)/venv ## record two real ranks with a fault in them, and show the report
	@$(BIN)/python sample_traces/programs/demo.py

demo-hang: $(STAMPS)/venv ## hang three real ranks, and show what diagnose says
	@$(BIN)/python sample_traces/programs/demo_hang.py

format: $(STAMPS)/tests ## write the format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(STAMPS)/tests ## format and lint, as checked by CI
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(STAMPS)/tests ## mypy --strict
	$(BIN)/mypy

contracts: $(STAMPS)/tests ## the direction of imports
	$(BIN)/lint-imports

check: lint types contracts ## all of that and the fast tests, in under two minutes
	$(BIN)/pytest -m 'not job' -n 2

# The examples of property tests are the same each time here; `make check` looks for new ones.
# Jobs run one after the other: they measure time on both CPUs; in a browser none does. One that
# failed is run once more in a process of its own, since others may have had the CPUs; twice is a
# fault.
JOBS = $(BIN)/pytest $(1) || { [ $$? -eq 1 ] && $(BIN)/pytest $(1) --last-failed; }
BROWSER := tests/browser

test: $(STAMPS)/tests $(STAMPS)/chromium ## what CI runs: real ranks, py-spy, Chromium, slow links
	$(BIN)/pytest -m 'not job' -n 2 --hypothesis-seed=0
	$(call JOBS,$(BROWSER) -m 'job and not long' -n 2)
	$(call JOBS,--ignore $(BROWSER) -m 'job and not long')

test-all: test ## those that take long, too: every use of DDP, fifty late ranks, a built wheel
	$(call JOBS,-m long)

PARTS := 1/5 2/5 3/5 4/5 5/5
gauntlet: $(STAMPS)/tests ## trainings with a fault from a report each, and healthy ones; PARTS=2/5 runs one part
	set -e; for part in $(PARTS); do timeout 540 $(BIN)/python -m tests.gauntlet.run --part $$part; done

gauntlet-hangs: $(STAMPS)/tests ## trainings that hang, or are only slow, and what diagnose says of them
	set -e; for part in $(PARTS); do timeout 540 $(BIN)/python -m tests.gauntlet.hang_run --part $$part; done

gauntlet-healthy: $(STAMPS)/tests ## healthy trainings, 200 recordings: is any alarm given?
	$(BIN)/python -m tests.gauntlet.healthy_run --times 200

clean: ## remove what the targets made
	rm -rf $(VENV) $(STAMPS) build dist *.egg-info
