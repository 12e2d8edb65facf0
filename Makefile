# One target per stage. Every target sets up what it needs; `make help` lists them.

SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
# PyTorch's CPU wheels have an index of their own. The ordinary index would install CUDA on Linux.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
# llama.cpp is built for this machine's own instruction set. With AMX, GCC drops stores that build AMX's tile configuration
# (llama.cpp issue 20824), and the build would die: these flags keep them.
CPUINFO ?= /proc/cpuinfo
AMX_FLAGS := $(shell grep -qsw amx_tile $(CPUINFO) && echo '-DCMAKE_CXX_FLAGS="-fno-tree-dse -fno-dse"')
CMAKE_ARGS ?= -DGGML_NATIVE=ON $(AMX_FLAGS)
export CMAKE_ARGS

CONFIG ?= tiny
RUN ?= runs/latest
MODEL ?= $(RUN)
QUANT ?= q4_k_m
PORT ?= 8080
# Training in several processes (docs/distributed.md): processes per machine, machines, and the machine that keeps the run.
NPROC ?= 1
NNODES ?= 1
MAIN ?=
ARGS ?=
RUNS ?= $(RUN)
# Tests run in parallel. Half of the time they wait for processes of their own, so two workers suit two cores.
TEST_WORKERS ?= 2
comma := ,
space := $(subst ,, )

ifeq ($(NPROC) $(NNODES),1 1)
TRAIN = $(PY) -m train
else
TRAIN = $(PY) -m train.distributed.launch nproc=$(NPROC) nnodes=$(NNODES) $(if $(MAIN),main=$(MAIN))
endif

.PHONY: help setup demo train plan watch report export verify eval serve chat data-stats bench-train bench-serve bench-quant doctor test lint format clean

help: ## show this list
	@echo "slm: from raw text to a served language model on a CPU"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo; echo "  ARGS=\"key=value ...\" passes Hydra overrides to any stage, e.g. make train ARGS=\"name=mine train.max_steps=2000\""

setup: $(VENV)/.ready ## create .venv and install everything (about 4 minutes on two cores)

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else f"slm needs Python 3.11 to 3.13; {sys.executable} is {v[0]}.{v[1]}: run make with PYTHON=python3.12")'
	@test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV). llama-cpp-python is built here for this processor: 3 to 4 minutes on two cores."
	@$(PY) -m pip install --quiet --disable-pip-version-check --upgrade pip
	@$(PY) -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 30 --extra-index-url $(TORCH_INDEX) "torch>=2.13,<2.14" 2> >(grep -v "^WARNING: Retrying" >&2)
	@start=$$SECONDS; PYTHONWARNINGS=ignore $(PY) -m pip install --quiet --disable-pip-version-check --editable ".[logging,dev]" && echo "Installed in $$((SECONDS - start)) s."
	@$(PY) -m slm.llama.rebuild
	@touch $@

demo: setup ## train, export, evaluate and run a small model, in minutes
	@$(PY) -m train preset=tiny name=demo train.max_minutes=7 $(ARGS)
	@$(PY) -m export run=runs/demo quant=q4_k_m
	@$(PY) -m slm.evaluate run=runs/demo eval.text=runs/demo/validation.txt eval.max_tokens=30000
	@$(PY) -m serve.terminal model=runs/demo prompt="Once upon a time" max_tokens=300 temperature=0.6
	@printf '%s\n' "" "That was raw text to a quantized model on this machine. Next:" \
	  "  make serve MODEL=runs/demo                 an OpenAI-compatible server" \
	  "  make chat MODEL=runs/demo                  the model in this terminal" \
	  "  make train CONFIG=10m ARGS=\"name=mine data=local 'data.files=[my/*.txt]'\"   your own text"

train: setup ## train a model: CONFIG=tiny|10m|50m|125m|350m NPROC=1 ARGS="name=mine ..."
	@$(TRAIN) preset=$(CONFIG) $(ARGS)

watch: setup ## follow a run from another terminal: RUN=runs/latest
	@$(PY) -m train.report.watch run=$(RUN) $(ARGS)

report: setup ## compare runs in one HTML file: RUNS="runs/a runs/b"
	@$(PY) -m train.report.html 'runs=[$(subst $(space),$(comma),$(strip $(RUNS)))]' $(ARGS)

export: setup ## write GGUF files, quantized and proven: RUN=runs/latest QUANT=q4_k_m,q8_0
	@$(PY) -m export run=$(RUN) quant=$(QUANT) $(ARGS)

verify: setup ## check exported files against the SHA-256 that their export recorded: RUN=runs/latest
	@$(PY) -m export.verify run=$(RUN) $(ARGS)

eval: setup ## measure perplexity of the checkpoint and its GGUF files: RUN=runs/latest ARGS="eval.text=FILE"
	@$(PY) -m slm.evaluate run=$(RUN) $(ARGS)

serve: setup ## serve a model over OpenAI's API: MODEL=runs/latest PORT=8080
	@$(PY) -m serve model=$(MODEL) port=$(PORT) $(ARGS)

chat: setup ## chat with a model in the terminal: MODEL=runs/latest
	@$(PY) -m serve.terminal model=$(MODEL) $(ARGS)

plan: setup ## show what a preset costs: parameters, FLOPs, memory, time: CONFIG=125m
	@$(PY) -m train.tools.plan preset=$(CONFIG) $(ARGS)

data-stats: setup ## count documents, tokens and duplicates of a text: ARGS="data=local data.files=[...]"
	@$(PY) -m train.tools.data_stats preset=$(CONFIG) $(ARGS)

bench-train: setup ## measure training speed against Hugging Face's Trainer and the GEMM peak: CONFIG=125m
	@$(PY) -m train.tools.bench preset=$(CONFIG) $(ARGS)

doctor: setup ## show what this machine has, what slm uses, and what to install
	@$(PY) -m slm.doctor $(ARGS)

bench-serve: setup ## measure the server against llama.cpp's limit and other servers: MODEL=runs/latest
	@$(PY) -m serve.bench model=$(MODEL) $(ARGS)

bench-quant: setup ## compare size, quality and speed of quantization types: RUN=runs/latest
	@$(PY) -m export.bench run=$(RUN) $(ARGS)

test: setup ## run all tests, TEST_WORKERS=2 at a time; a failed one is run again alone
	@$(PY) -m pytest -q -n $(TEST_WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS) || { \
	    [ $$? -eq 1 ] && echo "the tests that failed, once more, one at a time:" && \
	    $(PY) -m pytest -q --last-failed --last-failed-no-failures none $(ARGS); }

lint: setup ## check style and types
	@$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

format: setup ## format the code
	@$(VENV)/bin/ruff check --fix . ; $(VENV)/bin/ruff format .

clean: ## remove the environment and caches, but not runs
	@rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache *.egg-info
