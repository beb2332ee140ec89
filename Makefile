# make demo: every CPU backend judged on real traffic.  make test: linter, types and tests.
# make gpu: all tests and the judgement of the GPU backends, in the Python that is active.

PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.PHONY: demo test gpu

demo: $(INSTALLED)
	$(BIN)/kvcanary conform

test: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2 --dist worksteal

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[all]'
	touch $@

gpu:
	JAX_PLATFORMS=cpu $(PYTHON) -m pytest -n 8 --dist worksteal --ignore tests/gpu
	$(PYTHON) -m pytest tests/gpu
	$(PYTHON) -m shared_ref conform --require torch-triton --require jax-mosaic --require jax-triton
