# Six commands, the same for people and for CI. Each sets up .venv first where that is needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test quick test-gpu lint bench docs fuzz mutants clean

demo: $(VENV)/.ready-all
	$(BIN)/outfield demo --out demo

test: $(VENV)/.ready-dev
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# Under a minute on two cores: two cases of each test of the rooms that all others stand on.
quick: $(VENV)/.ready-dev
	OUTFIELD_TEST_QUICK=1 $(BIN)/pytest -n auto tests/scores tests/files tests/features tests/test_*.py

# On a machine with a GPU: only what needs one. From "make test" GPUs are hidden.
test-gpu: $(VENV)/.ready-dev
	OUTFIELD_TEST_GPU=1 $(BIN)/pytest -m gpu tests

lint: $(VENV)/.ready-dev
	$(BIN)/python tools/stubs.py
	$(BIN)/python tools/docs_site.py
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/rooms.py

bench: $(VENV)/.ready-bench
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/large.py --rows 500000
	$(BIN)/python benchmarks/scaling.py --out build/scaling.png

docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo 'site/index.html'

# Options: make fuzz FUZZ='--count 2000 --seed 3', make mutants MUTANTS='--rooms scores --count 50 --seed 1'
fuzz: $(VENV)/.ready-dev
	$(BIN)/python tools/fuzz.py $(FUZZ)

mutants: $(VENV)/.ready-dev
	$(BIN)/python tools/mutants.py --jobs 2 $(MUTANTS)

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-all: pyproject.toml packages/outfield-demo/pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[all]' --editable ./packages/outfield-demo
	touch $@

$(VENV)/.ready-dev: pyproject.toml packages/outfield-demo/pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]' --editable ./packages/outfield-demo
	touch $@ $(VENV)/.ready-all

$(VENV)/.ready-docs: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[docs]'
	touch $@

$(VENV)/.ready-bench: pyproject.toml packages/outfield-demo/pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]' --editable ./packages/outfield-demo
	touch $@ $(VENV)/.ready-dev $(VENV)/.ready-all

clean:
	rm -rf $(VENV) demo toy build site .pytest_cache .mypy_cache .ruff_cache
