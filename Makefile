# Every target installs what it needs on first use, into .venv with the tested versions; trainings fetch the default data.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEV := .venv/ready-dev
TATOEBA := data/tatoeba/README.md
PROCS ?= 1
KILLS ?= 50
# The program to export for: ctranslate2 or huggingface.
FORMAT ?= ctranslate2

# The variables of each target. A script's options go into ARGS.
TAKES.train := PROCS
TAKES.teach := TEACHER NAME PROCS
TAKES.import := FROM
TAKES.evaluate := RUN
TAKES.translate := RUN TEXT
TAKES.export := RUN FORMAT
TAKES.serve := RUN
TAKES.report := RUN
TAKES.shortlist := RUN
TAKES.prune := RUN
TAKES.quantize := RUN
TAKES.plot-attention := RUN TEXT TARGET
TAKES.torture := KILLS

# Their values are passed on unchanged: $(value X) does not expand X. Free text goes through the environment, where no shell reads
# it (translator/runtime/overrides.py splits ARGS); other values go in single quotes.
unexport TEXT TARGET ARGS RUN FROM FORMAT PROCS KILLS TEACHER NAME
quoted = '$(subst ','\'',$1)'
RUN_OPTION := $(if $(value RUN),$(call quoted,run=$(value RUN)))
SCRIPTS := train teach data-report import evaluate translate export serve report shortlist prune quantize plot-attention bench \
	compare growth
$(SCRIPTS): export TRANSLATE_ARGS := $(value ARGS)
export TRANSLATE_TEXT := $(value TEXT)
export TRANSLATE_TARGET := $(value TARGET)

# Refuse any other variable, which make would ignore, and show the right spelling.
TAKEN := $(foreach goal,$(MAKECMDGOALS),$(TAKES.$(goal))) ARGS PYTHON
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
WRONG := $(firstword $(filter-out $(TAKEN) SHELL GOMP_SPINCOUNT LD_PRELOAD,$(GIVEN)))
ifneq ($(WRONG),)
UPPER := $(shell printf %s $(call quoted,$(WRONG)) | tr a-z A-Z)
GROUP := $(shell grep -lsE $(call quoted,^$(WRONG):) conf/*.yaml conf/*/*.yaml | sed -E 's|conf/||; s|/.*|.|; s|.*yaml$$||' | sort -ur)
GOAL := make $(firstword $(MAKECMDGOALS))
OPTION := $(GOAL) ARGS="$(firstword $(GROUP))$(WRONG)=$(value $(WRONG))"
$(error $(WRONG): $(GOAL) takes no such variable, only $(strip $(TAKEN))$(if \
	$(filter $(UPPER),$(TAKEN)),. Write $(UPPER)="$(value $(WRONG))",$(if $(filter $(UPPER),$(WRONG)),,. Write $(OPTION))))
endif
ifneq ($(filter train teach,$(MAKECMDGOALS)),)
ifeq ($(shell printf %s $(call quoted,$(value PROCS)) | grep -xE '[1-9][0-9]{0,3}'),)
$(error PROCS=$(value PROCS): not a number of processes. Write a whole number from 1 to 9999)
endif
endif

.DEFAULT_GOAL := help
.PHONY: help train teach data-report import evaluate translate export serve report shortlist prune quantize plot-attention board \
	bench compare growth data test fuzz torture lint docs setup clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16
	@echo
	@echo 'ARGS="..." passes options, e.g. make train ARGS="data=multi30k model=base". They are in conf/.'

# PyTorch's threads spin while they wait. Beside busy programs a training that spins less is twice as fast.
train teach: export GOMP_SPINCOUNT ?= 10000
# A faster allocator for large tensors, if it is installed (docs/speed.md).
train teach evaluate translate serve bench compare growth: export LD_PRELOAD ?= $(wildcard /usr/lib/$(shell uname -m)-linux-gnu/libtcmalloc_minimal.so.4)
LAUNCH = $(if $(filter-out 1,$(PROCS)),$(BIN)/torchrun --standalone --nproc-per-node $(PROCS),$(BIN)/python)
train: $(READY) $(if $(findstring init=,$(value ARGS)),.venv/ready-huggingface) ## Train a model, or resume; PROCS=2: two processes or GPUs
	@$(LAUNCH) scripts/train.py

teach: $(READY) ## Train a student NAME=... on the translations of a trained model, TEACHER=..., with its data and tokenizer
	@$(LAUNCH) scripts/teach.py $(if $(value TEACHER),$(call quoted,data.teacher=$(value TEACHER))) \
		$(if $(value NAME),$(call quoted,name=$(value NAME)))

data-report: $(READY) ## Show which rows cleaning drops, and why, before training: ARGS="data=files data.train=pairs.tsv"
	@$(BIN)/python scripts/data_report.py

import: .venv/ready-huggingface ## Make a run folder of FROM=..., Marian (OPUS-MT) or M2M-100 weights
	@$(BIN)/python scripts/import.py $(call quoted,init=$(value FROM))

evaluate: $(READY) ## Score a trained model on the test split: BLEU, chrF, TER
	@$(BIN)/python scripts/evaluate.py $(RUN_OPTION)

translate: $(READY) ## Translate TEXT="...", or the lines of stdin
ifneq ($(value TEXT),)
	@printf '%s\n' "$$TRANSLATE_TEXT" | $(BIN)/python scripts/translate.py $(RUN_OPTION)
else
	@$(BIN)/python scripts/translate.py $(RUN_OPTION)
endif

export: $(if $(filter ctranslate2 huggingface,$(value FORMAT)),.venv/ready-$(value FORMAT),$(READY)) ## Write a trained model for other programs: FORMAT=ctranslate2 or huggingface
	@$(BIN)/python scripts/export.py $(RUN_OPTION) $(call quoted,format=$(value FORMAT))

serve: .venv/ready-serve ## Serve a trained model: an HTTP API and a page at http://127.0.0.1:5000/
	@$(BIN)/python scripts/serve.py $(RUN_OPTION)

report: $(READY) ## Write a page about a trained model, to send or print: ARGS="against=OTHER_RUN" compares two
	@$(BIN)/python scripts/report.py $(RUN_OPTION)

shortlist: $(READY) ## Learn a trained model's shortlist, for faster translation with ARGS="search.shortlist=20"
	@$(BIN)/python scripts/shortlist.py $(RUN_OPTION)

prune: $(READY) ## Write a smaller run of a trained one: ARGS="heads=0.25 encoder_layers=[0,2,3] vocabulary=used"
	@$(BIN)/python scripts/prune.py $(RUN_OPTION)

quantize: $(READY) ## Write a copy of a trained model in a quarter of the bytes, for CPUs: weights in int8
	@$(BIN)/python scripts/quantize.py $(RUN_OPTION)

plot-attention: $(READY) ## Draw the attention of every layer and head for TEXT="..." and its translation, or TARGET="..."
	@$(BIN)/python scripts/plot_attention.py $(RUN_OPTION)

board: $(READY) ## Show the training curves in the browser (TensorBoard)
	@$(BIN)/tensorboard --logdir runs $(value ARGS)

bench: $(READY) ## Measure the speed of training, or with --run=RUN of decoding
	@$(BIN)/python scripts/bench/speed.py

compare: $(READY) $(if $(findstring --ctranslate2,$(value ARGS)),.venv/ready-ctranslate2) ## Compare trained models in size, memory, scores and speed: ARGS="--runs=runs/x,runs/x-int8"
	@$(BIN)/python scripts/bench/models.py

growth: $(READY) ## Measure the cost of an update by model and length, and learning by corpus size
	@$(BIN)/python scripts/bench/growth.py

data: $(TATOEBA) ## Fetch the default data, Tatoeba's everyday sentences

test: $(DEV) $(TATOEBA) ## Run the tests, on all cores
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(value ARGS)

fuzz: $(DEV) ## Try a hundred thousand random inputs, and count them by property
	@$(BIN)/python -m pytest tests/system/test_fuzz.py --hypothesis-profile=fuzz --hypothesis-show-statistics $(value ARGS)

torture: $(DEV) ## Kill, starve and mislead real processes: KILLS=50 trainings at random instants, workers, translations
	@KILLS=$(call quoted,$(value KILLS)) $(BIN)/python -m pytest -s -m torture $(value ARGS)

lint: $(DEV) ## Check style (ruff), types (mypy) and words
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/check_words.py

docs: .venv/ready-docs ## Build the docs site into site/html/: guides, and a reference from docstrings
	@$(BIN)/python docs/build_site.py

setup: $(READY) ## Make .venv with the tested versions

clean: ## Remove .venv and caches; runs and data stay
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info

# The stamp is written last, so that an interrupted installation starts again.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'error: Python 3.11 or newer is needed; name one with make PYTHON=/path/to/python3' >&2; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install -qq --upgrade --constraint constraints.txt pip setuptools
	$(BIN)/pip install -qq --constraint constraints.txt torch
	$(BIN)/pip install -qq --constraint constraints.txt --editable .
	@touch $@

# Add one of pyproject.toml's extras.
.venv/ready-%: $(READY)
	$(BIN)/pip install -qq --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(TATOEBA): | $(READY)
	@$(BIN)/python scripts/prepare_tatoeba.py
