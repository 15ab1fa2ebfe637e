# Every target sets up what it needs. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.headrace-installed
SEEDS ?= 2000
WORKERS ?= auto
PYTEST ?=
PIPELINE ?= $(if $(or $(JAVA_HOME),$(shell command -v java 2>/dev/null)),--pipeline)

.DEFAULT_GOAL := help

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install Headrace with all that is developed and tested with it

$(STAMP): requirements.lock pyproject.toml setup.py $(wildcard src/headrace/records/*.pyx)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

run: $(STAMP) ## start Headrace on embedded defaults, data in ./data; with tables where Java is there
	$(BIN)/headrace serve --data-dir ./data $(PIPELINE)

check: $(STAMP) ## format, lint and types, without the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

test: check ## set up, check, and run all tests in parallel and in random order
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST)

KEEPING_SEEDS ?= 20

simulate: $(STAMP) ## run the simulations over SEEDS seeds each (default 2000)
	$(BIN)/python -m headrace.testing.simulation --seeds $(SEEDS)
	$(BIN)/python -m headrace.testing.simulation --scenario groups --seeds $(SEEDS)
	$(BIN)/python -m headrace.testing.simulation --scenario tables --seeds $(SEEDS)
	$(BIN)/python -m headrace.testing.simulation --scenario compaction --seeds $(SEEDS)
	$(BIN)/python -m headrace.testing.simulation --scenario keeping --seeds $(KEEPING_SEEDS)

fuzz: $(STAMP) ## fuzz the decoders for SECONDS seconds each (default 60)
	$(BIN)/python tools/fuzz.py --seconds $(or $(SECONDS),60)

interop: $(STAMP) ## drive a broker with foreign clients: Java, Go, JavaScript, C (needs Maven, Go, npm and Debian packages)
	$(BIN)/python -m compat

interop-short: $(STAMP) ## the same in under five minutes, as CI runs it
	$(BIN)/python -m compat --short

bench: $(STAMP) ## print the figures of the benchmarks, Apache Kafka beside us (about 50 minutes)
	$(BIN)/python -m benchmarks

bench-quick: $(STAMP) ## the comparison with Apache Kafka in about three minutes
	$(BIN)/python -m benchmarks beside_kafka --quick

MINUTES ?= 10

hostile: $(STAMP) ## let hostile clients at a broker for MINUTES (default 10): right answers, flat memory, nothing lost
	$(BIN)/python -m benchmarks hostile --minutes $(MINUTES)

docs: $(STAMP) ## write the generated reference pages
	$(BIN)/python -m tools.generate_docs

messages: $(STAMP) ## extract the Kafka message facts anew (needs Maven)
	$(BIN)/python tools/extract_messages.py

format: $(STAMP) ## let ruff format and mend what it can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## resolve requirements.lock anew
	@test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --all-extras --generate-hashes \
		--no-emit-index-url --no-annotate --custom-compile-command "make lock" -o requirements.lock pyproject.toml

clean: ## remove what was built (the data directory stays)
	rm -rf $(VENV) build dist src/*.egg-info src/headrace/records/_columns.c src/headrace/records/*.so

.PHONY: help setup run check test simulate fuzz interop interop-short bench bench-quick hostile docs messages format lock clean
