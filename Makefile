SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

BIN := .venv/bin
CHECKS := ruff ruff-format pyright lint-imports vulture check-owners check-names check-loops check-words codespell check-tree page-checks check-requirements check-reference
COMPOSE_FILES := $(if $(BUILD_CA)$(BUILD_PIP_CONF),-f compose.yaml -f deploy/docker/compose.build.yaml)
.PHONY: help accessibility screenshots check-words up down logs demo doctor reset test test-fast test-clients lint format lock compose docs try-model chaos chaos-mixed partitions soak promises failpoints power-cuts damage stalls broker-kills late-bytes broker-away failpoint-kills leader-kills bench profile parked waiting cancels reconnects fairness heavy-json goodput queues recovery overload mutants scaled poison acknowledgements fuzz release schemathesis frames $(CHECKS)

help:  ## List all commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

up:  ## Install what is missing and start everything: http://127.0.0.1:8080 (ARGS="--port 9000 --detach")
	@tools/setup.sh local
	@$(if $(findstring --detach,$(ARGS)),true,echo "Ctrl-C stops it. In the background: make up ARGS=--detach" >&2)
	@exec $(BIN)/banksman up $(ARGS)

down:  ## Stop what `make up` started, in order
	@$(BIN)/banksman down $(ARGS)

logs:  ## Follow the logs of every process
	@tail -n 20 -F $${BANKSMAN_DATA_DIR:-.banksman}/logs/*.log

demo:  ## Have a first conversation with the running system
	@$(BIN)/banksman demo $(ARGS)

doctor:  ## Check this machine and the running system
	@tools/setup.sh local
	@$(BIN)/banksman doctor $(ARGS)

reset:  ## Delete every conversation, file and key of `make up`, after a confirmation (FORCE=1 skips it)
	@$(BIN)/banksman reset $(if $(FORCE),--force) $(ARGS)

# Several workers: most tests wait for processes. `-n auto` is two on each CPU, see tests/support/scheduling.py.
# Each worker imports every test file, which takes twice as long without the bytecode of the last run.
PYTEST := env -u PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX=$(CURDIR)/.pytest_cache/bytecode \
	$(BIN)/python -m pytest -n auto --dist loadscope --durations=30 --durations-min=1

test:  ## Run the whole test suite, set-up included (ARGS="tests/bus -k fence")
	@tools/setup.sh dev
	@$(PYTEST) $(ARGS)

test-fast:  ## Run the tests that need no other process, in under a minute (ARGS="tests/runs")
	@tools/setup.sh dev
	@$(PYTEST) -n logical -m "unit and not soak" $(ARGS)

lint:  ## Run every check: style, types, imports, owners, unused code, spelling, the tree
	@tools/setup.sh dev
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync $(CHECKS)

ruff:
	$(BIN)/ruff check
ruff-format:
	$(BIN)/ruff format --check
pyright:
	$(BIN)/pyright
lint-imports:
	$(BIN)/lint-imports --no-logo
codespell:
	$(BIN)/codespell
vulture:
	$(BIN)/vulture
	$(BIN)/vulture shared services cli tests tools benchmarks examples
check-owners:
	$(BIN)/python tools/check_owners.py
check-names:
	$(BIN)/python tools/check_names.py
check-loops:
	$(BIN)/python tools/check_loops.py
check-words:
	$(BIN)/python tools/check_words.py
check-tree:
	$(BIN)/python tools/check_tree.py
page-checks:
	tools/page_checks.sh
check-reference:
	$(BIN)/python -m tools.reference --check
	$(BIN)/python -m tools.client_types --check
	$(BIN)/python -m tools.third_party --check
	$(BIN)/python -m tools.request_path --check
check-requirements:
	$(BIN)/python tools/requirements.py --check

accessibility:  ## Scan every view of the page in both themes and at three widths with axe-core
	@tools/setup.sh dev
	@BANKSMAN_ACCESSIBILITY=all $(BIN)/python -m pytest tests/e2e/test_accessibility.py

screenshots:  ## Draw the eight main views in both themes and at two widths (DIR=screenshots)
	@tools/setup.sh dev
	@$(BIN)/python -m tests.e2e.screenshots $(or $(DIR),screenshots)

bench:  ## Measure what a run costs: time, CPU, messages, memory (ARGS="--rows run --in-flight 16")
	@tools/setup.sh dev
	@$(MAKE) --no-print-directory .venv-bench/installed
	@$(BIN)/python -m benchmarks.bench $(ARGS)

profile:  ## Show where the processes spend the CPU time of a run, by service (ARGS="--in-flight 16")
	@tools/setup.sh dev
	@$(MAKE) --no-print-directory .venv-bench/installed
	@$(BIN)/python -m benchmarks.profile $(ARGS)

.venv-bench/installed: requirements/bench.txt
	@$(BIN)/python -m venv --clear .venv-bench
	@.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

parked:  ## Park 100,000 runs; measure memory and the time until a run continues (ARGS="--runs 10000")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.parked $(ARGS)

waiting:  ## Let 2,000 runs wait for a slow model; measure their agent's memory (ARGS="--runs 200")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.waiting $(ARGS)

cancels:  ## Cancel stubborn commands; measure the time until all their processes have ended (ARGS="--cancels 200")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.cancels $(ARGS)

reconnects:  ## Disconnect 200 clients 20 times each; every one must receive 1..n (ARGS="--seed 7")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.reconnects $(ARGS)

fairness:  ## Let one tenant of ten flood; the p99 of the others may grow to 1.5 times (ARGS="--seconds 20")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.fairness $(ARGS)

heavy-json:  ## Let one tenant send JSON that is costly to parse; the p99 of others may grow to 1.5 times (ARGS="--seconds 20")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.heavy_json $(ARGS)

goodput:  ## Complete runs at three times the load, with 1, 2 and 4 agents (ARGS="--agents 4 --seconds 10")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.goodput $(ARGS)

queues:  ## Queue 2,400 messages in one conversation and 10,000 in a hundred; measure whom they delay (ARGS="--all 1000")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.queues $(ARGS)

recovery:  ## Kill all processes five times; measure when interrupted runs have ended after the start (ARGS="--rounds 10")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.recovery $(ARGS)

overload:  ## Request three times the runs that agents can execute, for five minutes (ARGS="--seconds 60")
	@tools/setup.sh dev
	@$(BIN)/python -m benchmarks.overload $(ARGS)

mutants:  ## Remove each required behaviour in a copy of the tree; a test must fail each time (ARGS="R7 R12", ARGS=changed)
	@tools/setup.sh dev
	@$(BIN)/python -m tests.mutants $(ARGS)

scaled:  ## Start two containers of each service, execute runs, and kill one of each (needs Docker)
	@tools/setup.sh dev
	@BANKSMAN_TEST_PRIVILEGED=$(or $(BANKSMAN_TEST_PRIVILEGED),required) $(BIN)/python -m pytest -m soak tests/deploy/test_scaled.py

poison:  ## Execute a thousand runs among fifty invalid messages on each subject
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -m soak tests/faults/limits/test_poison.py

acknowledgements:  ## Kill the broker fifty times directly after an acknowledgement
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -s -m soak tests/faults/limits/test_acknowledgements.py

fuzz:  ## Send malformed input to every interface for minutes (ROUNDS=20 SEED=7)
	@tools/setup.sh dev
	@BANKSMAN_TEST_CASES=new BANKSMAN_FUZZ_ROUNDS=$(or $(ROUNDS),20) BANKSMAN_FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/faults/limits/test_fuzz.py

schemathesis:  ## Let schemathesis request every described operation of a whole system for minutes (EXAMPLES=100 SEED=7)
	@tools/setup.sh dev
	@BANKSMAN_SCHEMATHESIS_EXAMPLES=$(or $(EXAMPLES),50) BANKSMAN_FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/faults/limits/test_described_api.py

frames:  ## Send 100,000 malformed frames over websockets (FRAMES=5000 SEED=7)
	@tools/setup.sh dev
	@BANKSMAN_FUZZ_FRAMES=$(or $(FRAMES),100000) BANKSMAN_FUZZ_SEED=$(or $(SEED),1) $(BIN)/python -m pytest -o log_cli=true -o log_cli_level=INFO tests/gateway/websocket/test_fuzzed_frames.py

PROMISES ?= P1 P2 P3 P4 P5 P7 P9 P10 P11 P12 P16
promises:  ## Run the tests that prove the promises of docs/reliability.md (SERVERS=3 PROMISES="P1 P3" ARGS="-x")
	@tools/setup.sh dev
	@tests=$$($(BIN)/python tools/promises.py $(PROMISES)) && \
		BANKSMAN_TEST_SERVERS=$(or $(SERVERS),1) $(BIN)/python -m pytest $(ARGS) $$tests

chaos:  ## Kill and freeze every process under traffic for ten minutes, then check the history (SEED=7 DURATION=600 SERVERS=3)
	@tools/setup.sh dev
	@$(BIN)/python -m tests.support.chaos --duration $(or $(DURATION),600) --servers $(or $(SERVERS),1) $(if $(SEED),--seed $(SEED)) $(ARGS)

chaos-mixed:  ## Upgrade from another version and roll back under traffic (BASE=HEAD~60, needs the history; SEED=7 WITHOUT="SETTING")
	@tools/setup.sh dev
	@$(BIN)/python -m tests.support.chaos.mixed $(if $(BASE),--base $(BASE)) $(if $(WITHOUT),--without $(WITHOUT)) $(if $(SEED),--seed $(SEED)) $(ARGS)

partitions:  ## Disconnect each service from the network in each way, for 5, 30 and 120 s (root; SECONDS_CUT="5 30")
	@tools/setup.sh dev
	@$(BIN)/python -m tests.support.chaos.partitions $(if $(SECONDS_CUT),--seconds $(SECONDS_CUT)) $(ARGS)

failpoints:  ## Kill a runner fifty times at each of six points of a call; once with containers
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -m soak tests/faults/chaos/test_failpoints.py tests/tool_runner/service/test_docker_runner.py

power-cuts:  ## Cut the power of the broker twenty times under traffic (root; loop devices)
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -m soak tests/faults/broker/test_power_cuts.py

damage:  ## Damage the files of the broker at random places, 200 times, with work and kills in between (ROUNDS=20 SEED=7)
	@tools/setup.sh dev
	@BANKSMAN_DAMAGE_ROUNDS=$(or $(ROUNDS),200) BANKSMAN_DAMAGE_SEED=$(or $(SEED),1) $(BIN)/python -m pytest tests/faults/broker/test_random_damage.py

PROGRAMME := $(BIN)/python -m tests.support.chaos.programmes
stalls:  ## Freeze the broker for 0.5 to 10 s under traffic, again and again for 20 minutes (DURATION=60 SEED=7)
	@tools/setup.sh dev
	@$(PROGRAMME) stalls --seconds $(or $(DURATION),1200) $(if $(SEED),--seed $(SEED)) $(ARGS)

broker-kills:  ## Kill the broker 500 times directly after an acknowledgement, under traffic (FAULTS=50 SEED=7)
	@tools/setup.sh dev
	@$(PROGRAMME) kills --seconds 7200 --faults $(or $(FAULTS),500) $(if $(SEED),--seed $(SEED)) $(ARGS)

failpoint-kills:  ## Kill the broker while agents and runners wait at their failpoints (FAULTS=20 SEED=7)
	@tools/setup.sh dev
	@$(PROGRAMME) failpoints --seconds 7200 --faults $(or $(FAULTS),100) $(if $(SEED),--seed $(SEED)) $(ARGS)

late-bytes:  ## Hold the bytes between a service and the broker for up to 25 s, and deliver them late (DURATION=60 SEED=7)
	@tools/setup.sh dev
	@$(PROGRAMME) held --seconds $(or $(DURATION),600) $(if $(SEED),--seed $(SEED)) $(ARGS)

broker-away:  ## Take the broker away for ten minutes under traffic (DURATION=60 SEED=7)
	@tools/setup.sh dev
	@$(PROGRAMME) away --seconds $(or $(DURATION),600) $(if $(SEED),--seed $(SEED)) $(ARGS)

leader-kills:  ## Kill and freeze the leader of a three-server broker ten times each under traffic
	@tools/setup.sh dev
	@$(BIN)/python -m pytest -s -m soak tests/faults/broker/test_leader_kills.py tests/faults/broker/test_frozen_leader.py

try-model:  ## Try the features of a model, and score how well it follows the tool protocols (ARGS="openai:qwen3 --base-url http://127.0.0.1:11434/v1")
	@tools/setup.sh dev
	@$(BIN)/python -m tools.try_model $(ARGS)

test-clients:  ## Install coding agents and SDKs from npm and PyPI and drive them against the demo model (ARGS="codex --latest")
	@tools/setup.sh dev
	@$(BIN)/python -m tools.try_clients $(ARGS)

soak:  ## Hours of traffic; memory and open files must not grow (DURATION=28800)
	@tools/setup.sh dev
	@$(BIN)/python -m tests.support.chaos.soak --duration $(or $(DURATION),3600) $(if $(SEED),--seed $(SEED)) $(ARGS)

release:  ## Make a release into dist/: packages, SBOM, licences, checksums, images (ARGS=--dry-run: without images)
	@tools/setup.sh dev
	@$(BIN)/python -m tools.release $(ARGS)

docs:  ## Write the generated pages of docs/ and the client's types from the code, the tests and the pinned packages
	$(BIN)/python -m tools.reference
	$(BIN)/python -m tools.client_types
	$(BIN)/python -m tools.third_party
	$(BIN)/python -m tools.request_path
	$(BIN)/python -m tests.vendors.results
	$(BIN)/python -m tools.feature_table
	$(BIN)/python tools/requirements.py

format:  ## Format the sources
	@tools/setup.sh dev
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format
	tools/page_checks.sh --write

lock:  ## Update requirements/*.txt from pyproject.toml (ARGS=--upgrade)
	@tools/setup.sh dev
	@tools/lock.sh $(ARGS)

compose:  ## Build and start everything in containers (BUILD_CA, BUILD_PIP_CONF: files for the build)
	docker compose $(COMPOSE_FILES) up --build --wait
