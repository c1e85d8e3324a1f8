# Two commands: `make run` starts the broker, `make test` tests it. Both set up what they need.
#
# Everything is installed into .venv; a target whose name is a file is made once and kept.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
COMPILED := .venv-compiled
# More processes than cores, because most tests wait for a lock to end or for a client to retry.
WORKERS ?= 5

# Byte code is kept wherever these commands run. Without it, each start of a server compiles all its modules.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run demo test style types tests wheel compiled docs interop browser faults fuzz cluster connect bench clean

help:  ## List the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

run: $(VENV)/.installed-portal  ## Set up and start the broker with the queues of examples/Config.json
	$(BIN)/bendybus serve --config examples/Config.json

demo: $(VENV)/.installed-dev  ## A tour that takes a minute: an unmodified Azure SDK, a crash, pipelines on Spark
	$(BIN)/python examples/tour.py

test: tests  ## Set up and run the tests (under ten minutes)

style: $(VENV)/.installed-dev $(VENV)/.installed-deploy .cache/promtool  ## ruff: rules and layout; the files of deploy/, each with its own tool
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python deploy/lint.py

types: $(VENV)/.installed-dev  ## mypy --strict on src
	$(BIN)/mypy

# tests/fix_workers.py divides the tests among the processes.
tests: $(VENV)/.installed-dev
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder

wheel: $(BIN)/python  ## dist/: the sdist, and a wheel compiled with mypyc (needs a C compiler); BENDYBUS_PURE=1 for a pure Python wheel
	$(BIN)/pip install --quiet build twine
	rm -rf dist
	$(if $(BENDYBUS_PURE),,HATCH_BUILD_HOOK_ENABLE_MYPYC=true) $(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*

# The wheel is built from the sdist, in a separate folder: a compiled module beside its source would hide the source.
compiled: wheel  ## The tests of `make test` again, with the compiled wheel in a separate environment
	$(PYTHON) -m venv $(COMPILED)
	$(COMPILED)/bin/pip install --quiet --upgrade "pip>=25.1"
	$(COMPILED)/bin/pip install --quiet --force-reinstall --no-deps dist/*.whl
	$(COMPILED)/bin/pip install --quiet --group dev "bendybus[portal,spark,delta]"
	$(COMPILED)/bin/bendybus --version
	$(COMPILED)/bin/pytest -n $(WORKERS) --no-loadscope-reorder

docs: $(VENV)/.installed-dev  ## dist/site: the documentation as a searchable site; fails if a link is broken
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file website/mkdocs.yml

# BROKERS=2: every server has two processes. CLUSTER=3: every server is a cluster of three brokers on PostgreSQL,
# behind a load balancer. See tests/set_ups.py.
interop: export BENDYBUS_TEST_BROKERS = $(BROKERS)
interop: export BENDYBUS_TEST_CLUSTER = $(CLUSTER)
interop: $(VENV)/.installed-interop  ## The Azure SDKs: Python's (as in `make test`), .NET's, and Java's with JMS, Go's and JavaScript's if their tools are installed; BROKERS=2 or CLUSTER=3 against several brokers
	$(BIN)/pytest -n $(WORKERS) --no-loadscope-reorder tests/interop
	PYTHONPATH=tests $(BIN)/python -m interop.java.run
	PYTHONPATH=tests $(BIN)/python -m interop.dotnet.run
	PYTHONPATH=tests $(BIN)/python -m interop.go.run
	PYTHONPATH=tests $(BIN)/python -m interop.javascript.run

browser: $(VENV)/.installed-browser .cache/axe-core  ## The portal in headless Chromium: every page, light and dark; with SHOTS=1 the guide's screenshots
	BENDYBUS_BROWSER=1 BENDYBUS_SHOTS=$(SHOTS) $(BIN)/pytest -n 2 --timeout 300 tests/browser $(ARGS)

faults: $(VENV)/.installed-dev  ## 2,000 simulations with fresh seeds, 1,000 of them of several brokers; five minutes of real faults; kill -9 under load; a store away; the brokers, databases and network of a cluster; floods; backups; account for every message
	PYTHONPATH=tests $(BIN)/python -m faults.simulation --seeds 1000
	PYTHONPATH=tests $(BIN)/python -m faults.simulation --brokers 2 --seeds 300
	PYTHONPATH=tests $(BIN)/python -m faults.simulation --brokers 3 --seeds 400
	PYTHONPATH=tests $(BIN)/python -m faults.simulation --brokers 4 --seeds 300
	$(BIN)/python tests/faults/fault_check.py --seconds 300 --faults 20
	$(BIN)/python tests/faults/crash_check.py --kills 50
	$(BIN)/python tests/faults/outage_check.py
	$(BIN)/python tests/faults/brokers_check.py --seconds 300 --faults 20
	$(BIN)/python tests/faults/flood_check.py
	$(BIN)/python tests/faults/backup_check.py --rounds 20
	$(BIN)/python tests/faults/backup_check.py --rounds 5 --brokers 2
	$(BIN)/python tests/faults/spark_check.py --kills 20
	$(BIN)/python tests/faults/pipeline_check.py --kills 3

fuzz: $(VENV)/.installed-fuzz  ## 10 million inputs for the parsers of untrusted input; ARGS="--seconds 60" for a shorter run; then every property test with 50 times the examples of `make test`
	PYTHONPATH=tests $(BIN)/python -m fuzz.run $(ARGS)
	$(BIN)/pytest -n $(WORKERS) -m hypothesis --hypothesis-profile=thorough --timeout=3600

cluster: $(VENV)/.installed-dev  ## Kill a worker of a Spark cluster during a capture; account for every message
	$(BIN)/python tests/faults/cluster_check.py

connect: $(VENV)/.installed-connect  ## Spark Connect and Declarative Pipelines with the data source, as the guide says
	$(BIN)/python tests/faults/connect_check.py

bench: $(VENV)/.installed-bench  ## Side by side with RabbitMQ 4 and Artemis in many shapes, kinds of stores, several brokers, Spark beside the SDK: rates, CPU, latency
	$(BIN)/python tests/bench/run.py $(ARGS)
	$(BIN)/python tests/bench/shapes.py $(filter --quick,$(ARGS))
	$(BIN)/python tests/bench/brokers.py $(filter --quick,$(ARGS))
	$(BIN)/python tests/bench/moves.py $(filter --quick,$(ARGS))
	$(BIN)/python tests/bench/run.py --store-kinds $(filter --quick,$(ARGS))
	$(BIN)/python tests/bench/scale.py $(filter --quick,$(ARGS))
	$(BIN)/python tests/bench/topics.py
	$(BIN)/python tests/bench/entities.py
	$(BIN)/python tests/bench/purge.py
	$(BIN)/python tests/bench/spark_bench.py $(SPARK_ARGS)

clean:  ## Remove what the other targets made
	rm -rf $(VENV) $(COMPILED) dist .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis

# -- set-up ---------------------------------------------------------------------

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit("Bendybus needs Python 3.11 or later; this is %s" % sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/.installed-portal: $(VENV)/.installed
	$(BIN)/pip install --quiet --editable ".[portal]"
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/pip install --quiet --group dev --editable ".[portal,spark,delta]"
	touch $@

$(VENV)/.installed-connect: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --editable ".[connect]"
	touch $@

$(VENV)/.installed-deploy: $(VENV)/.installed
	$(BIN)/pip install --quiet --group deploy
	touch $@

# Proton is compiled here. If that fails, its tests are skipped with that reason.
$(VENV)/.installed-interop: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --group interop || echo "not installed: python-qpid-proton, which needs a C compiler"
	touch $@

# Debian's Chromium, because Playwright's own comes from another server.
$(VENV)/.installed-browser: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --group browser
	test -x /usr/bin/chromium || { apt-get update && apt-get install --yes chromium; } || \
		{ echo "make browser needs /usr/bin/chromium: install Debian's package chromium as root"; exit 1; }
	touch $@

# axe-core checks that people with disabilities can use the pages. Without npm, its tests are skipped with that reason.
.cache/axe-core:
	mkdir -p .cache
	npm install --silent --no-save --prefix .cache/axe-core axe-core || \
		echo "not installed: axe-core, which needs npm"

# promtool checks the alert rules. It comes from Debian's package, unpacked and not installed. Without it, the
# rules are not checked.
.cache/promtool:
	mkdir -p .cache/prometheus
	cd .cache/prometheus && apt-get download prometheus && dpkg-deb -x prometheus_*.deb . && \
		mv usr/bin/promtool ../promtool || echo "not installed: promtool, which Debian's package prometheus has"
	rm -rf .cache/prometheus

# If there is no wheel of atheris, the search runs without coverage and says so.
$(VENV)/.installed-fuzz: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --group fuzz || echo "not installed: atheris, which needs clang where it has no wheel"
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	$(BIN)/pip install --quiet --group bench
	touch $@
