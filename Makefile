# Everything is installed into .venv; nothing outside the checkout changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
# Two test processes more than there are cores, because tests wait for half of their time. The slowest tests are
# listed at the end.
PROCESSES ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 2)))
PYTEST := $(BIN)/python -m pytest -n $(PROCESSES) --dist worksteal --durations=50
# How much of the slow lane `make test` runs: none, part or all.
SLOW_LANE ?= none

.PHONY: install demo test test-fast test-all check style types contracts format proto runtime docs bench sbom audit supply-chain clean

install: $(VENV)/.installed

PACKAGES := pyproject.toml runtime/pyproject.toml constraints.txt
PIP_INSTALL := $(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt
# All cores compile bytecode; pip would use one. A package may have files that only another Python can compile.
COMPILE := $(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("tunefarm needs Python 3.11 or newer: run make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
# Python may bring an older pip, which takes twice as long to find all versions, and works as well.
	-@$(BIN)/python -m pip install --quiet pip==26.3

# The packages of the service and its examples.
$(VENV)/.service: $(PACKAGES) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[all]' --editable runtime
	@$(COMPILE)
	@touch $@

# The packages of the tests, too.
$(VENV)/.installed: $(PACKAGES) | $(BIN)/python
	$(PIP_INSTALL) --editable '.[all,test]' --editable runtime
	@$(COMPILE)
	@touch $(VENV)/.service $@

demo: $(VENV)/.service
	@mkdir -p $(DEMO)
	$(BIN)/python -m examples.make_models resnet18 --out $(DEMO)/resnet18.onnx
	$(BIN)/tunefarm tune $(DEMO)/resnet18.onnx --trials 150 --data $(DEMO)/data --output $(DEMO)/resnet18
	$(BIN)/python -m examples.run_artifact $(DEMO)/resnet18

# All but the slow lane: fifteen minutes on two cores.
test: install
	$(PYTEST) --slow-lane=$(SLOW_LANE)

# Tests that take less than a second each.
test-fast: install
	$(PYTEST) -m 'not slow'

# Everything, with images, installs, emulated machines and all random programs.
test-all: install
	$(PYTEST) --slow-lane=all

# Style, types and import rules, in less than a minute; `make -j2 check` checks types beside the others.
check: style types contracts

style: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: install
	$(BIN)/mypy

contracts: install
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. proto/fleet.proto
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. proto/child.proto

# The wheels of tunefarm-runtime for x86-64 and aarch64, in build/runtime.
runtime: install
	$(BIN)/python runtime/build.py

# The documentation site, in build/site; warnings are errors.
docs: install
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

bench: install
	$(BIN)/python -m benchmarks

# What tunefarm is made of, with the versions of constraints.txt, as a validated CycloneDX document.
sbom: supply-chain
	@mkdir -p build
	$(BIN)/cyclonedx-py requirements constraints.txt --pyproject pyproject.toml --output-reproducible --validate \
		--output-file build/sbom.json

# Known vulnerabilities of these versions. Asks PyPI, so it needs the internet.
audit: supply-chain
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

supply-chain: install
	$(PIP_INSTALL) --editable '.[supply-chain]'

clean:
	rm -rf build $(VENV)
