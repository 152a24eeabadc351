# `make run` runs the default study, `make test` passes the tests; both set up what they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORES ?= all

.PHONY: run test lint clean

$(VENV)/run.stamp: envs/lock.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/lock.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch $@

$(VENV)/test.stamp: $(VENV)/run.stamp envs/lock-test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r envs/lock-test.txt
	touch $@

run: $(VENV)/run.stamp
	$(BIN)/snakemake --cores $(CORES)
	@echo "The report is results/$$(sed -n 's/^study: *//p' config.yaml)/report.html"

test: $(VENV)/test.stamp
	$(BIN)/python -m pytest

lint: $(VENV)/test.stamp
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict tsc_engine

clean:
	rm -rf $(VENV) .snakemake results resources logs
