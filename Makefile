# Everything is installed into .venv; nothing outside the checkout changes.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
# One test process for each core.
PARALLEL := -n auto --dist worksteal

.PHONY: install demo test test-fast check format proto bench clean

install: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("tunefarm needs Python 3.11 or newer: run make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all,test]'
	@touch $@

demo: install
	@mkdir -p $(DEMO)
	$(BIN)/python -m examples.make_models resnet18 --out $(DEMO)/resnet18.onnx
	$(BIN)/tunefarm tune $(DEMO)/resnet18.onnx --trials 150 --data $(DEMO)/data --output $(DEMO)/resnet18
	$(BIN)/python -m examples.run_artifact $(DEMO)/resnet18

test: install
	$(BIN)/python -m pytest $(PARALLEL)

test-fast: install
	$(BIN)/python -m pytest $(PARALLEL) -m 'not slow'

# Style, types and import rules, in less than a minute.
check: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: install
	$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. --grpc_python_out=. proto/fleet.proto

bench: install
	$(BIN)/python -m benchmarks

clean:
	rm -rf build $(VENV)
