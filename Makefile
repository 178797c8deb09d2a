# One environment in .venv, made on first use; every target is what CI runs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
OUT ?= demo-out
INSTALLED := $(VENV)/.installed

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
	$(BIN)/python -m pytest -q -n 2 -m "not golden_all"

golden: $(INSTALLED) ## every golden case, through the public API
	$(BIN)/python -m pytest -q -n 2 -m "golden_all" tests

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
	$(VENV)-wheel/bin/python -m pip install --quiet "$$(ls dist/*.whl)[cpu,eval]" pytest pytest-xdist hypothesis
	$(VENV)-wheel/bin/python -m pytest -q -n 2 -m "not golden_all"

bench: $(INSTALLED) ## what the documents claim about speed, measured here
	$(BIN)/python benchmarks/preparation.py
	$(BIN)/python benchmarks/pipeline.py

clean:
	rm -rf $(VENV) $(VENV)-wheel build dist $(OUT) *.egg-info
