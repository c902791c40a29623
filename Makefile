# Every target makes what it needs on first use: .venv with the tested versions; trainings fetch the default data when they need it.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEV := .venv/ready-dev
TATOEBA := data/tatoeba/README.md
# Taken to the letter: make would otherwise read a dollar sign in them as its own.
export TRANSLATE_TEXT := $(value TEXT)
export TRANSLATE_TARGET := $(value TARGET)
ARGS ?=
PROCS ?= 1
KILLS ?= 50
# The run folder to work on; without it, the newest.
RUN ?=
RUN_OPTION := $(if $(RUN),'run=$(RUN)')
# The program to export for: ctranslate2 or huggingface.
FORMAT ?= ctranslate2
# The model to import: a folder or a hub id, whose last part names the run.
FROM ?=

.DEFAULT_GOAL := help
.PHONY: help train import evaluate translate export serve report shortlist plot-attention board bench growth data test fuzz \
	torture lint setup clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo
	@echo 'ARGS="..." passes options, e.g. make train ARGS="data=multi30k model=base"; they stand in conf/.'

# PyTorch's threads spin while they wait for each other; beside busy programs a training that spins less is twice as fast.
train: export GOMP_SPINCOUNT ?= 10000
# An allocator that is quick at large tensors of all sizes, where the system has it (docs/speed.md).
train evaluate translate serve bench growth: export LD_PRELOAD ?= $(wildcard /usr/lib/$(shell uname -m)-linux-gnu/libtcmalloc_minimal.so.4)
train: $(READY) $(if $(findstring init=,$(ARGS)),.venv/ready-huggingface) ## Train a model, or go on with an interrupted training; PROCS=2: by two processes, or on two GPUs
	@$(if $(filter-out 1,$(PROCS)),$(BIN)/torchrun --standalone --nproc-per-node $(PROCS),$(BIN)/python) scripts/train.py $(ARGS)

import: .venv/ready-huggingface ## Make a run folder of FROM=..., Marian (OPUS-MT) or M2M-100 weights
	@$(BIN)/python scripts/import.py 'init=$(FROM)' 'name=$(notdir $(patsubst %/,%,$(FROM)))' $(ARGS)

evaluate: $(READY) ## Score a trained model on the test split: BLEU, chrF, TER
	@$(BIN)/python scripts/evaluate.py $(RUN_OPTION) $(ARGS)

translate: $(READY) ## Translate TEXT="...", or the lines of stdin
ifdef TEXT
	@printf '%s\n' "$$TRANSLATE_TEXT" | $(BIN)/python scripts/translate.py $(RUN_OPTION) $(ARGS)
else
	@$(BIN)/python scripts/translate.py $(RUN_OPTION) $(ARGS)
endif

export: $(if $(filter ctranslate2 huggingface,$(FORMAT)),.venv/ready-$(FORMAT),$(READY)) ## Write a trained model for other programs: FORMAT=ctranslate2 or huggingface
	@$(BIN)/python scripts/export.py $(RUN_OPTION) 'format=$(FORMAT)' $(ARGS)

serve: .venv/ready-serve ## Serve a trained model: an HTTP API and a page at http://127.0.0.1:5000/
	@$(BIN)/python scripts/serve.py $(RUN_OPTION) $(ARGS)

report: $(READY) ## Write a page about a trained model, to send or print: ARGS="against=OTHER_RUN" compares two
	@$(BIN)/python scripts/report.py $(RUN_OPTION) $(ARGS)

shortlist: $(READY) ## Learn a trained model's shortlist, for faster translation with ARGS="search.shortlist=20"
	@$(BIN)/python scripts/shortlist.py $(RUN_OPTION) $(ARGS)

plot-attention: $(READY) ## Draw the attention of every layer and head for TEXT="...", translated as TARGET="..." or by itself
	@$(BIN)/python scripts/plot_attention.py $(RUN_OPTION) $(ARGS)

board: $(READY) ## Show the training curves in the browser (TensorBoard)
	@$(BIN)/tensorboard --logdir runs $(ARGS)

bench: $(READY) ## Measure the speed of training, or with --run=RUN of decoding
	@$(BIN)/python scripts/benchmark.py $(ARGS)

growth: $(READY) ## Measure how the cost of training grows: docs/growth.md
	@$(BIN)/python scripts/growth.py $(ARGS)

data: $(TATOEBA) ## Fetch the default data, Tatoeba's everyday sentences

test: $(DEV) $(TATOEBA) ## Run the tests, on all cores
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(ARGS)

fuzz: $(DEV) ## Try a hundred thousand random inputs, and tell how many each property saw
	@$(BIN)/python -m pytest tests/test_fuzz.py --hypothesis-profile=fuzz --hypothesis-show-statistics $(ARGS)

torture: $(DEV) ## Kill, starve and mislead real processes: KILLS=50 trainings at random instants, workers, translations
	@KILLS=$(KILLS) $(BIN)/python -m pytest -s -m torture $(ARGS)

lint: $(DEV) ## Check style (ruff) and types (mypy)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

setup: $(READY) ## Make .venv with the tested versions

clean: ## Remove .venv and caches; runs and data stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# The stamp is written last, so that an interrupted installation is done again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3' >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -qq --upgrade --constraint constraints.txt pip setuptools
	$(BIN)/pip install -qq --constraint constraints.txt torch
	$(BIN)/pip install -qq --constraint constraints.txt --editable .
	@touch $@

# What one of pyproject.toml's extras needs besides.
.venv/ready-%: $(READY)
	$(BIN)/pip install -qq --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(TATOEBA): | $(READY)
	@$(BIN)/python scripts/prepare_tatoeba.py
