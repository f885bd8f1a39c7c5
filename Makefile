# make demo | make test: each does all its own set-up. make help lists the rest.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MTNLG := $(BIN)/mtnlg
RUNS := runs

.DEFAULT_GOAL := help
.PHONY: help install demo test check lock clean

help: ## list what make can do
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

install: $(INSTALLED) ## make .venv with the pinned packages and this project

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
	  || { echo "mtnlg: requirements.lock is for Python 3.11; $(PYTHON) is another. Try: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep ^torch== requirements.lock)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: install ## the whole path on this machine: data, training, resharding, evaluation, serving
	@echo; echo "== 1/6  web pages, encyclopedia and code to tokens: extract, clean, choose, deduplicate, decontaminate, blend"
	$(MTNLG) corpus demo $(RUNS)/demo-sources
	$(MTNLG) evaluate texts $(RUNS)/demo-tasks.jsonl --tasks boolq,piqa,hellaswag,winogrande
	$(MTNLG) corpus build configs/corpus/demo.yaml
	@echo; echo "== 2/6  pretrain over four processes: tensor 2 x pipeline 2"
	$(MTNLG) train configs/train/demo.yaml data=$(RUNS)/demo-corpus/blend/blend.yaml
	@echo; echo "== 3/6  reshard for transformers"
	$(MTNLG) convert $(RUNS)/demo $(RUNS)/demo-hf --to hf
	@echo; echo "== 4/6  reshard for tensor-parallel inference"
	$(MTNLG) convert $(RUNS)/demo $(RUNS)/demo-vllm --to vllm --tensor-parallel-size 2
	@echo; echo "== 5/6  evaluate, zero-, one- and few-shot"
	$(MTNLG) evaluate $(RUNS)/demo-hf --tasks boolq,piqa,hellaswag,winogrande --shots 0,1,4 --limit 100
	@echo; echo "== 6/6  serve over HTTP, and ask"
	$(MTNLG) serve $(RUNS)/demo-vllm --port 0 --check "The history of the world"

test: install ## lint, types and the whole test suite
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest

check: install ## lint, types and the quick tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -m "not slow"

lock: $(INSTALLED) ## resolve pyproject.toml again and write requirements.lock
	$(BIN)/python tools/lock.py

clean: ## remove .venv, runs and caches
	rm -rf $(VENV) $(RUNS) .mypy_cache .pytest_cache .ruff_cache .hypothesis *.egg-info
