# One environment in .venv, made on first use; every target is what CI runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo-out
INSTALLED := $(VENV)/.installed
TEST_TOOLS := pytest pytest-xdist hypothesis pycocotools

.PHONY: demo test golden torch-tests check format bench wheel-test clean
.DEFAULT_GOAL := test

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[cpu,eval,dev]'
	touch $@

demo: $(INSTALLED) ## from the shipped checkpoint to drawn detections, on two CPU workers
	$(BIN)/python examples/demo.py --roiline $(BIN)/roiline --out $(OUT)

test: $(INSTALLED) ## the suite, with about ten golden cases through the commands
	$(BIN)/python -m pytest -q -n 2 -m "not golden and not torch"

golden: $(INSTALLED) ## every golden case, through the public API
	$(BIN)/python -m pytest -q -n 2 -m "golden and not torch"

torch-tests: ## parity with the real torchvision, in an environment of its own (torch takes 5.5 GB)
	test -e $(VENV)-torch/.installed || $(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet -e '.[cpu,eval]' $(TEST_TOOLS) torch==2.14.1 torchvision==0.29.1
	touch $(VENV)-torch/.installed
	$(VENV)-torch/bin/python -m pytest -q -m torch

check: $(INSTALLED) ## lint, format, strict types, import rules
	mkdir -p .types && ln -sfn .. .types/roiline
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

wheel-test: $(INSTALLED) ## the suite once more, against the built wheel
	rm -rf build dist $(VENV)-wheel
	$(BIN)/python -m build --wheel --outdir dist
	$(PYTHON) -m venv $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet "$$(ls dist/*.whl)[cpu,eval]" $(TEST_TOOLS)
	$(VENV)-wheel/bin/python -m pytest -q -n 2 -m "not golden and not torch"

bench: $(INSTALLED) ## what the documents claim about speed, measured here
	$(BIN)/python benchmarks/export_cost.py
	$(BIN)/python benchmarks/preparation.py

clean:
	rm -rf $(VENV) $(VENV)-wheel $(VENV)-torch build dist $(OUT) *.egg-info
