# Every target installs what it needs on first use, into .venv with the tested versions; trainings fetch the default data.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
DEV := .venv/ready-dev
TATOEBA := data/tatoeba/README.md
PROCS ?= 1
KILLS ?= 50
# The program to export for: ctranslate2, huggingface or argos.
FORMAT ?= ctranslate2

# The variables of each target. A script's options go into ARGS.
TAKES.train := PROCS
TAKES.teach := TEACHER NAME PROCS
TAKES.import := FROM
TAKES.evaluate := RUN
TAKES.translate := RUN TEXT
TAKES.export := RUN FORMAT
TAKES.serve := RUN
TAKES.board := RUN
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
SCRIPTS := train teach corpora data-report import evaluate translate export serve board report shortlist prune quantize plot-attention \
	bench compare growth
$(SCRIPTS): export TRANSLATE_ARGS := $(value ARGS)
export TRANSLATE_TEXT := $(value TEXT)
export TRANSLATE_TARGET := $(value TARGET)

# Refuse any other variable, which make would ignore, and show the right spelling.
TAKEN := $(foreach goal,$(MAKECMDGOALS),$(TAKES.$(goal))) ARGS PYTHON
GIVEN := $(foreach name,$(.VARIABLES),$(if $(filter command,$(firstword $(origin $(name)))),$(name)))
WRONG := $(firstword $(filter-out $(TAKEN) SHELL GOMP_SPINCOUNT LD_PRELOAD,$(GIVEN)))
ifneq ($(WRONG),)
UPPER := $(shell printf %s $(call quoted,$(WRONG)) | tr a-z A-Z)
OPTION_FILES := $(filter-out conf/experiment/%,$(wildcard conf/*.yaml conf/*/*.yaml))
GROUP := $(shell grep -lsE $(call quoted,^$(WRONG):) $(OPTION_FILES) | sed -E 's|conf/||; s|/.*|.|; s|.*yaml$$||' | sort -ur)
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

GOALS := help $(SCRIPTS) data test fuzz torture lint docs setup clean
UNKNOWN := $(firstword $(filter-out $(GOALS) $(TATOEBA) .venv/%,$(MAKECMDGOALS)))
ifneq ($(UNKNOWN),)
NEAREST := $(shell $(PYTHON) -c 'import difflib, sys; print(*difflib.get_close_matches(sys.argv[1], sys.argv[2:], 1))' \
	$(call quoted,$(UNKNOWN)) $(GOALS))
$(error $(UNKNOWN): no such target; $(if $(NEAREST),the nearest is make $(NEAREST),make help lists them))
endif

# Run a command. Ctrl-C reaches this shell and make as well: make then ends too, without "Error 130".
run = @trap 'ctrl_c=1' INT; $1 || { code=$$?; [ "$$ctrl_c" ] || exit $$code; }

.DEFAULT_GOAL := help
.PHONY: $(GOALS)

help: ## Show this list
	@awk -F ':.*## ' '/^##@ / { print "\n" substr($$0, 5) } /^[a-z-]+:.*## / { printf "  %-15s %s\n", $$1, $$2 }' Makefile
	@printf '\n%s\n' 'Examples; ARGS="..." holds options, which conf/ explains:'
	@printf '  %s\n' 'make train ARGS="data=files data.train=pairs.tsv train.max_minutes=10"' \
		'make translate TEXT="How are you?"' 'make serve RUN=my-run'

# PyTorch's threads spin while they wait. Beside busy programs a training that spins less is twice as fast.
train teach: export GOMP_SPINCOUNT ?= 10000
# A faster allocator for large tensors, if it is installed (docs/speed.md).
train teach evaluate translate serve bench compare growth: export LD_PRELOAD ?= $(wildcard /usr/lib/$(shell uname -m)-linux-gnu/libtcmalloc_minimal.so.4)
BY_NAME = $(if $(or $(findstring corpus=,$(value ARGS)),$(findstring corpus:,$(value ARGS))),.venv/ready-corpora)
LAUNCH = $(if $(filter-out 1,$(PROCS)),$(BIN)/torchrun --standalone --nproc-per-node $(PROCS),$(BIN)/python)

##@ Train

train: $(READY) $(if $(findstring init=,$(value ARGS)),.venv/ready-huggingface) $(BY_NAME) ## Train a model, or resume; PROCS=2: two processes or GPUs
	$(call run,$(LAUNCH) scripts/train.py)

teach: $(READY) $(BY_NAME) ## Train a student NAME=... on the translations of TEACHER=...
	$(call run,$(LAUNCH) scripts/teach.py $(if $(value TEACHER),$(call quoted,data.teacher=$(value TEACHER))) \
		$(if $(value NAME),$(call quoted,name=$(value NAME))))

import: .venv/ready-huggingface ## Make a run of FROM=..., Marian (OPUS-MT) or M2M-100 weights
	$(call run,$(BIN)/python scripts/import.py $(call quoted,init=$(value FROM)))

corpora: .venv/ready-corpora ## List corpora to train on by name: ARGS="source=en target=de"
	$(call run,$(BIN)/python scripts/corpora.py)

data-report: $(READY) $(BY_NAME) ## Show which rows cleaning drops, and why, before training
	$(call run,$(BIN)/python scripts/data_report.py)

data: $(TATOEBA) ## Fetch the default data, Tatoeba's everyday sentences

board: $(READY) ## Show training curves in TensorBoard; RUN=[a,b] compares
	$(call run,$(BIN)/python scripts/board.py $(RUN_OPTION))

##@ Use a trained model; RUN=NAME chooses one

translate: $(READY) ## Translate TEXT="...", or the lines of stdin
ifneq ($(value TEXT),)
	$(call run,printf '%s\n' "$$TRANSLATE_TEXT" | $(BIN)/python scripts/translate.py $(RUN_OPTION))
else
	$(call run,$(BIN)/python scripts/translate.py $(RUN_OPTION))
endif

evaluate: $(READY) ## Score a model on the test split: BLEU, chrF, TER
	$(call run,$(BIN)/python scripts/evaluate.py $(RUN_OPTION))

serve: .venv/ready-serve ## Serve a model: an HTTP API and a page at 127.0.0.1:5000
	$(call run,$(BIN)/python scripts/serve.py $(RUN_OPTION))

report: $(READY) ## Write a page about a model, or ARGS="against=OTHER" two
	$(call run,$(BIN)/python scripts/report.py $(RUN_OPTION))

plot-attention: $(READY) ## Draw the attention for TEXT="...", or also TARGET="..."
	$(call run,$(BIN)/python scripts/plot_attention.py $(RUN_OPTION))

export: $(if $(filter ctranslate2 argos,$(value FORMAT)),.venv/ready-ctranslate2,$(if $(filter huggingface,$(value FORMAT)),.venv/ready-huggingface,$(READY))) ## Write a model for other programs: FORMAT=ctranslate2, ...
	$(call run,$(BIN)/python scripts/export.py $(RUN_OPTION) $(call quoted,format=$(value FORMAT)))

##@ Make it smaller and faster

shortlist: $(READY) ## Learn a shortlist, for ARGS="search.shortlist=20"
	$(call run,$(BIN)/python scripts/shortlist.py $(RUN_OPTION))

prune: $(READY) ## Write a smaller run: ARGS="heads=0.25 vocabulary=used"
	$(call run,$(BIN)/python scripts/prune.py $(RUN_OPTION))

quantize: $(READY) ## Write a copy in a quarter of the bytes: weights in int8
	$(call run,$(BIN)/python scripts/quantize.py $(RUN_OPTION))

##@ Measure

bench: $(READY) ## Measure the speed of training, or with --run=RUN of decoding
	$(call run,$(BIN)/python scripts/bench/speed.py)

compare: $(READY) $(if $(findstring --ctranslate2,$(value ARGS)),.venv/ready-ctranslate2) ## Compare sizes, scores and speeds: ARGS="--runs=a,b"
	$(call run,$(BIN)/python scripts/bench/models.py)

growth: $(READY) ## Measure the cost of updates, and learning by corpus size
	$(call run,$(BIN)/python scripts/bench/growth.py)

##@ Work on the code

test: $(DEV) $(TATOEBA) ## Run the tests, on all cores
	@$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(value ARGS)

fuzz: $(DEV) ## Try a hundred thousand random inputs
	@$(BIN)/python -m pytest tests/system/test_fuzz.py --hypothesis-profile=fuzz --hypothesis-show-statistics $(value ARGS)

torture: $(DEV) ## Kill and starve real processes, KILLS=50 trainings
	@KILLS=$(call quoted,$(value KILLS)) $(BIN)/python -m pytest -s -m torture $(value ARGS)

lint: $(DEV) ## Check style (ruff, hadolint), types (mypy) and words
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/python scripts/check_words.py
	@! [ -x $(BIN)/hadolint ] || $(BIN)/hadolint Dockerfile

docs: .venv/ready-docs ## Build the docs site into site/html/
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
