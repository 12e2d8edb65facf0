# One target per stage, each a command of `slm` with make's variables as options. Every target sets up what it needs;
# `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# PyTorch's CPU wheels have their own index. The ordinary index would install CUDA on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# Whether set-up looks for what is missing before the first download: yes | no | only (and installs nothing).
CHECK ?= yes
# llama.cpp is built for this machine's own instruction set. With AMX, GCC drops stores that build AMX's tile configuration
# (llama.cpp issue 20824), and the build would die: these flags keep them.
CPUINFO ?= /proc/cpuinfo
AMX_FLAGS := $(shell grep -qsw amx_tile $(CPUINFO) && echo '-DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"')
CMAKE_ARGS ?= -DGGML_NATIVE=ON $(AMX_FLAGS)
export CMAKE_ARGS

CONFIG ?= tiny
# The time for a whole run, set-up included: 90s, 30m, 8h, 3d. Without a CONFIG it also chooses the size.
BUDGET ?=
# RUN= is another word for MODEL=.
RUN ?= runs/latest
MODEL ?= $(RUN)
# Text to train on, conversations to tune on: a file, a folder, several with commas, or the name of one of configs/data.
DATA ?=
# Of prepare: the folder that gets the corpus.
OUT ?= corpus
QUANT ?= q4_k_m
# The repository that publish uploads to: org/name.
TO ?=
PORT ?= 8080
# Training in several processes (docs/distributed.md): processes per machine, machines, and the machine that keeps the run.
NPROC ?= 1
NNODES ?= 1
MAIN ?=
ARGS ?=
# Of make export: onnx or pt2 in place of GGUF files.
FORMAT ?=
# Of make eval: tasks of lm-evaluation-harness in place of perplexity, such as hellaswag,arc_easy,blimp,lambada_openai.
TASKS ?=
# Of make report: "runs/a runs/b", or with commas, "runs/a,my runs/b".
RUNS ?=
# Tests run in parallel. They also wait, for their own processes among others: "auto" takes three workers for two cores.
TEST_WORKERS ?= auto
# Messages then advise make's targets.
export SLM_MAKE := 1
SLM := $(PY) -m slm
SETUP = PYTHONSAFEPATH= $(call quote,$(PYTHON)) -m slm.setup venv=$(VENV)
comma := ,
space := $(subst ,, )
# A word for the shell, whatever characters it has.
quote = '$(subst ','\'',$(1))'
# Of train and plan: the budget, and the preset, which is auto where a budget is given without a CONFIG.
SIZE = $(if $(BUDGET),$(call quote,budget=$(BUDGET)) )$(call quote,preset=$(if $(BUDGET),$(if $(filter file,$(origin CONFIG)),auto,$(CONFIG)),$(CONFIG)))
TEXT = $(if $(DATA),$(call quote,data=$(DATA)))
TIME = $(if $(BUDGET),$(call quote,budget=$(BUDGET)))
# Of train: what it starts from. The newest run is the model of all other targets.
START = $(if $(filter file,$(origin MODEL)),,$(call quote,model=$(MODEL)))
split = $(if $(findstring $(comma),$(1)),$(1),$(subst $(space),$(comma),$(strip $(1))))
ifneq ($(NPROC) $(NNODES),1 1)
PROCESSES = nproc=$(NPROC) nnodes=$(NNODES) $(if $(MAIN),$(call quote,main=$(MAIN)))
endif

.PHONY: help setup ready dev docs wheels demo demo-chat train tune qat sweep plan watch report export checkpoint verify publish eval exam serve chat studio data-stats prepare bench-train bench-recipe bench-serve bench-quant doctor test lint types format clean

help: ## show this list
	@echo "slm: from raw text to a served language model on a CPU"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  ARGS=\"key=value ...\" passes Hydra overrides to any stage, e.g. make train ARGS=\"name=mine train.max_steps=2000\""

setup: ready ## create .venv and install what runs; CHECK=only: look what is missing
	@$(SETUP) wait=yes check=$(CHECK)

# What a command needs; llama.cpp may still be under construction beside it, and what needs that waits for it.
ready: $(VENV)/.ready

# What tests, style checks and comparisons with other programs need besides.
dev: $(VENV)/.dev

# The file holds the checkout's folder. A .venv that came from elsewhere, or was moved with its checkout, is looked at again.
ifneq ($(shell cat $(VENV)/.ready 2>/dev/null),$(shell pwd -P))
.PHONY: $(VENV)/.ready
endif
ifeq ($(CHECK),only)
.PHONY: $(VENV)/.ready
endif

# With uv, where that is installed. slm/setup uses Python's standard library alone.
$(VENV)/.ready: pyproject.toml
	@command -v $(call quote,$(PYTHON)) >/dev/null || { echo "error: there is no $(PYTHON): install Python 3.11 to 3.13 (apt install python3 python3-venv, dnf install python3, brew install python), or name one: make PYTHON=..." >&2; exit 1; }
	@$(call quote,$(PYTHON)) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "slm needs Python 3.11 to 3.13; %s is %d.%d: run make with PYTHON=python3.12" % (sys.executable, v[0], v[1]))'
	@$(SETUP) $(call quote,torch_index=$(TORCH_INDEX)) check=$(CHECK)

$(VENV)/.dev: $(VENV)/.ready
	@[ $(CHECK) = only ] || { $(SETUP) purpose=tests && touch $@; }

wheels: ready ## build one wheel of llama.cpp for every kind of x86-64 (or ARM) processor, for a team or a container
	@$(PY) -m slm.setup.llama variants wheels

demo: ready ## train, export, evaluate and run a small model, in minutes
	@$(SLM) demo $(ARGS)

demo-chat: ready ## tune the demo's model so that it answers, in five more minutes
	@$(SLM) demo-chat $(ARGS)

train: ready ## train a model: DATA=notes/, CONFIG=tiny|10m|50m|125m|350m or BUDGET=8h, NPROC=1 ARGS="name=mine ..."
	@$(SLM) train $(PROCESSES) $(SIZE) $(START) $(TEXT) $(ARGS)

tune: ready ## tune a model on conversations: MODEL=runs/latest DATA=chats.jsonl BUDGET=10m
	@$(SLM) tune $(PROCESSES) $(call quote,base=$(MODEL)) $(TIME) $(TEXT) $(ARGS)

qat: ready ## train a model further for a quantized type: MODEL=runs/mine ARGS="train.qat=q4_0"
	@$(SLM) qat $(PROCESSES) $(call quote,base=$(MODEL)) $(TIME) $(TEXT) $(ARGS)

sweep: ready ## train a grid of small runs and compare them: CONFIG=tiny ARGS="optim.lr=0.01,0.02,0.05"
	@$(SLM) sweep $(call quote,preset=$(CONFIG)) $(START) $(TEXT) $(ARGS)

watch: ready ## follow a run from another terminal: MODEL=runs/latest
	@$(SLM) watch $(call quote,run=$(MODEL)) $(ARGS)

report: ready ## compare runs in one HTML file: RUNS="runs/a runs/b"
	@$(SLM) report $(call quote,runs=[$(if $(RUNS),$(call split,$(RUNS)),'$(MODEL)')]) $(ARGS)

export: ready $(if $(FORMAT),dev) ## write GGUF files, quantized and proven: MODEL=runs/latest QUANT=q4_k_m,q8_0; or FORMAT=onnx|pt2
	@$(SLM) export $(call quote,run=$(MODEL)) $(call quote,quant=$(QUANT)) $(if $(FORMAT),$(call quote,format=$(FORMAT))) $(ARGS)

checkpoint: ready ## read a GGUF file back as a Hugging Face directory: MODEL=model.gguf ARGS="out=folder"
	@$(SLM) checkpoint $(call quote,model=$(MODEL)) $(ARGS)

verify: ready ## check exported files against the SHA-256 that their export recorded: MODEL=runs/latest
	@$(SLM) verify $(call quote,run=$(MODEL)) $(ARGS)

publish: ready ## upload a run to the Hugging Face Hub: MODEL=runs/mine TO=org/name (a dry run) ARGS="dry_run=false"
	@$(SLM) publish $(call quote,run=$(MODEL)) $(if $(TO),$(call quote,to=$(TO))) $(ARGS)

eval: ready $(if $(TASKS),dev) ## measure perplexity of the checkpoint and its GGUF files: MODEL=runs/latest ARGS="eval.text=FILE"; or TASKS=hellaswag
	@$(SLM) eval $(call quote,run=$(MODEL)) $(if $(TASKS),$(call quote,tasks=$(TASKS))) $(ARGS)

exam: ready ## ask a model questions with known answers: MODEL=runs/latest, yours with DATA=my.jsonl (default: about stories)
	@$(SLM) exam $(call quote,run=$(MODEL)) $(TEXT) $(ARGS)

serve: ready ## serve a model over OpenAI's API: MODEL=runs/latest PORT=8080
	@$(SLM) serve $(call quote,model=$(MODEL)) $(call quote,port=$(PORT)) $(ARGS)

chat: ready ## chat with a model in the terminal: MODEL=runs/latest
	@$(SLM) chat $(call quote,model=$(MODEL)) $(ARGS)

studio: ready ## open the whole way as one page in the browser: http://127.0.0.1:8765
	@$(SLM) studio $(ARGS)

plan: ready ## show what a preset costs (CONFIG=125m), or what a time gives (BUDGET=8h): sizes, loss, memory, price
	@$(SLM) plan $(SIZE) $(START) $(TEXT) $(ARGS)

data-stats: ready ## count documents, tokens and duplicates of a text: DATA=notes/
	@$(SLM) data-stats $(call quote,preset=$(CONFIG)) $(TEXT) $(ARGS)

prepare: ready ## read, filter and tokenize a large text once: DATA=books/ OUT=corpus; then make train DATA=corpus/
	@$(SLM) prepare $(call quote,preset=$(CONFIG)) $(TEXT) $(call quote,out=$(OUT)) $(ARGS)

bench-train: ready dev ## measure training speed against Hugging Face's Trainer and the GEMM peak: CONFIG=125m
	@$(SLM) bench-train $(call quote,preset=$(CONFIG)) $(TEXT) $(ARGS)

bench-recipe: ready dev ## compare models after equal time, ours and Hugging Face's Trainer: CONFIG=10m DATA=notes/ ARGS="minutes=10"
	@$(SLM) bench-recipe $(call quote,preset=$(CONFIG)) $(TEXT) $(ARGS)

doctor: ready ## show what this machine has, what slm uses, and what to install
	@$(SLM) doctor $(ARGS)

bench-serve: ready dev ## measure the server against llama.cpp's limit and other servers: MODEL=runs/latest
	@$(SLM) bench-serve $(call quote,model=$(MODEL)) $(ARGS)

bench-quant: ready ## compare size, quality and speed of quantization types: MODEL=runs/latest
	@$(SLM) bench-quant $(call quote,run=$(MODEL)) $(ARGS)

test: dev setup ## run all tests, TEST_WORKERS=3 at a time; a failed one is run again alone
	@$(PY) -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || { \
	    [ $$? -eq 1 ] && echo "the tests that failed, once more, one at a time:" && \
	    $(PY) -m pytest -q --last-failed --last-failed-no-failures none $(ARGS); }

lint: dev setup ## check style and types
	@$(PY) -m ruff check . && $(PY) -m ruff format --check . && $(MAKE) --no-print-directory types

# mypy looks for slm.data in slm/data. It gets a folder of links in which the stages are there.
TYPES := .mypy_cache/tree
types: dev setup
	@rm -rf $(TYPES) && mkdir -p $(TYPES)/slm && ln -s $(addprefix $(CURDIR)/,$(wildcard slm/*) data train export serve studio) $(TYPES)/slm
	@cd $(TYPES) && $(abspath $(PY)) -m mypy --config-file=$(CURDIR)/pyproject.toml --cache-dir=$(CURDIR)/.mypy_cache

docs: ready ## build the site from docs/ and the options: site/index.html
	@$(SETUP) purpose=docs && NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --quiet --strict && echo "next: open site/index.html"

format: dev ## format the code
	@$(PY) -m ruff check --fix . ; $(PY) -m ruff format .

clean: ## remove the environment and caches, but not runs
	@rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache *.egg-info
