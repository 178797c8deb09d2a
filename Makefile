# One environment in .venv, made on first use; every target is what CI runs.
PYTHON ?= python3
VENV ?= .venv
# Two test processes on few cores: one BLAS thread each.
export OPENBLAS_NUM_THREADS ?= 1
BIN := $(VENV)/bin
OUT ?= demo-out
INSTALLED := $(VENV)/.installed
TEST_TOOLS := pytest pytest-xdist hypothesis pycocotools
EVERYWHERE := not golden and not exhaustive and not torch and not tensorrt and not cuda_compile and not ray and not browser and not docs

.PHONY: demo test golden exhaustive docs-tests gpu-check torch-tests tensorrt-tests ray-tests browser-tests chaos check format bench wheel-test clean
.DEFAULT_GOAL := test

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[cpu,eval,dev]'
	touch $@

demo: $(INSTALLED) ## from the shipped checkpoint to drawn detections, on two CPU workers
	$(BIN)/python examples/demo.py --roiline $(BIN)/roiline --out $(OUT)

test: $(INSTALLED) ## the suite, with about ten golden cases through the commands
	$(BIN)/python -m pytest -q -n 2 -m "$(EVERYWHERE)"

golden: $(INSTALLED) ## every golden case through the public API, and other long tests
	$(BIN)/python -m pytest -q -n 2 -m "golden and not torch and not tensorrt and not ray and not browser"

exhaustive: $(INSTALLED) ## golden cases that repeat what others show
	$(BIN)/python -m pytest -q -n 2 -m exhaustive

docs-tests: $(INSTALLED) ## every page of docs/, run as printed
	$(BIN)/python -m pytest -q -m docs

gpu-check: $(INSTALLED) ## on a machine with a GPU: kernels, engines, speed, in under four minutes
	$(BIN)/python benchmarks/gpu_check.py --json gpu-check.json

torch-tests: ## parity with the real torchvision, in an environment of its own (torch takes 5.5 GB)
	test -e $(VENV)-torch/.installed || $(PYTHON) -m venv $(VENV)-torch
	$(VENV)-torch/bin/python -m pip install --quiet -e '.[cpu,eval]' $(TEST_TOOLS) torch==2.14.1 torchvision==0.29.1
	touch $(VENV)-torch/.installed
	$(VENV)-torch/bin/python -m pytest -q -m torch

tensorrt-tests: ## kernels for every GPU generation, plugins over TensorRT's bindings, trunks through TensorRT for RTX; no GPU needed
	test -e $(VENV)-tensorrt/.installed || $(PYTHON) -m venv $(VENV)-tensorrt
	$(VENV)-tensorrt/bin/python -m pip install --quiet -e '.[cpu,eval]' $(TEST_TOOLS) cuda-bindings nvidia-cuda-nvrtc tensorrt_cu13_bindings==11.4.* tensorrt_rtx
	touch $(VENV)-tensorrt/.installed
	$(VENV)-tensorrt/bin/python -m pytest -q -n 2 -m "tensorrt or cuda_compile"

ray-tests: ## runs on a Ray cluster of this machine
	test -e $(VENV)-ray/.installed || $(PYTHON) -m venv $(VENV)-ray
	$(VENV)-ray/bin/python -m pip install --quiet -e '.[cpu,eval,ray]' $(TEST_TOOLS)
	touch $(VENV)-ray/.installed
	$(VENV)-ray/bin/python -m pytest -q -m ray

browser-tests: $(INSTALLED) ## report, gallery and certificate in a headless Chromium (the system's own, driven by playwright)
	$(BIN)/python -m pip install --quiet playwright
	$(BIN)/python -m pytest -q -m browser

chaos: $(INSTALLED) ## kills, stops, damage and a full disk, for longer than the suite does
	ROILINE_CHAOS_ROUNDS=10 $(BIN)/python -m pytest -q tests/test_chaos.py

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
	$(VENV)-wheel/bin/python -m pytest -q -n 2 -m "$(EVERYWHERE)"

bench: $(INSTALLED) ## what the documents claim about speed, measured here
	$(BIN)/python benchmarks/export_cost.py
	$(BIN)/python benchmarks/preparation.py
	$(BIN)/python benchmarks/overhead.py

clean:
	rm -rf $(VENV) $(VENV)-wheel $(VENV)-torch $(VENV)-tensorrt $(VENV)-ray build dist $(OUT) *.egg-info
