# The two commands are `make release` and `make test`; everything they make stays in .venv and .work.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
RECORDS ?= 1000000
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
WORK := .work
AIRFLOW := $(WORK)/airflow
LEDGER := $(WORK)/ledger/ledger.sqlite

.PHONY: help
help: ## show what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 18

# What a release needs, and beside it the extras with the tools of tests and documents: files whose hash a lock names.
$(CORE): LOCK = requirements/release.txt
$(READY): LOCK = requirements/all.txt
$(CORE) $(READY): pyproject.toml requirements/release.txt requirements/all.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; install it or set PYTHON=" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@if command -v uv >/dev/null 2>&1; then \
		INSTALL="uv pip install -q --compile-bytecode --python $(BIN)/python"; \
	else \
		INSTALL="$(BIN)/python -m pip install -q --disable-pip-version-check"; \
	fi; \
	$$INSTALL --require-hashes -r $(LOCK) && $$INSTALL --no-deps --no-build-isolation -e .
	@touch $(CORE) $@

.PHONY: setup
setup: $(READY) ## install prdp and its tools into .venv

$(WORK)/data/plan.yaml: | $(CORE)
	$(BIN)/prdp generate --records $(RECORDS) --out $(WORK)/data

.PRECIOUS: $(LEDGER)
$(LEDGER): | $(CORE)
	$(BIN)/prdp ledger create $(LEDGER)

.PHONY: release
release: $(CORE) $(WORK)/data/plan.yaml $(LEDGER) ## generate microdata if there are none, and release them on Dask
	$(BIN)/prdp release $(WORK)/data/plan.yaml --out $(WORK)/releases --ledger $(LEDGER)

.PHONY: cbp
cbp: $(READY) ## choose the scales of conf/plans/*.draft.yaml anew, and say what other limits are worth: some minutes
	rm -rf $(WORK)/cbp
	$(BIN)/prdp generate --like cbp-2011 --out $(WORK)/cbp
	cp conf/plans/*.draft.yaml $(WORK)/cbp/
	for each in cbp state-sector; do \
		$(BIN)/prdp calibrate $(WORK)/cbp/$$each.draft.yaml --like cbp-2011 --out $(WORK)/cbp/$$each.yaml || exit 1; \
		cp $(WORK)/cbp/$$each.yaml conf/plans/$$each.yaml; \
	done
	$(BIN)/prdp calibrate $(WORK)/cbp/cbp.draft.yaml --like cbp-2011 --frontier --plot docs/cbp/frontier.svg > docs/cbp/frontier.txt

.PHONY: examples
examples: $(READY) ## make and check the example products of conf/economies: labour, farms, enterprises
	rm -rf $(WORK)/examples
	$(BIN)/python -m benchmarks.examples --out $(WORK)/examples

.PHONY: test
test: $(READY) ## run all tests
	@# one process more than there are processors: many tests wait for a disk, a server or a child
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m pytest -n $$(( $$(getconf _NPROCESSORS_ONLN) + 1 )) --maxprocesses 4 --dist loadgroup

.PHONY: lint
lint: $(READY) ## ruff, formatting, types, and the size of each room beside its budget
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.house
	@$(MAKE) -s audit

.PHONY: audit
audit: $(READY) ## known vulnerabilities of what the lock installs, where their database can be reached
	@if text=$$($(BIN)/pip-audit --progress-spinner off -s osv --require-hashes --disable-pip --no-deps -r requirements/all.txt 2>&1); \
	then echo "audit: no known vulnerability"; else case "$$text" in \
		*ConnectionError*) echo "audit: NOT DONE, the database of vulnerabilities cannot be reached from here";; \
		*) printf '%s\n' "$$text"; exit 1;; esac; fi

DIST := $(WORK)/dist
.PHONY: wheel sbom
wheel: $(READY) ## the wheel in .work/dist, the same bytes from the same files
	rm -rf build $(DIST)/*.whl
	umask 022; export SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-315532800}; \
		$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps --no-build-isolation -w $(DIST) .

sbom: $(READY) ## a bill of materials (CycloneDX) of what a release installs, in .work/dist
	@mkdir -p $(DIST)
	$(BIN)/cyclonedx-py requirements requirements/release.txt --pyproject pyproject.toml --output-reproducible -o $(DIST)/prdp.cdx.json

$(AIRFLOW)/.ready: conf/airflow/constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; install it or set PYTHON=" >&2; exit 1; }
	@test -x $(AIRFLOW)/bin/python || $(PYTHON) -m venv $(AIRFLOW)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install -q --python $(AIRFLOW)/bin/python --require-hashes -r $<; \
	else \
		$(AIRFLOW)/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r $<; \
	fi
	@touch $@

.PHONY: airflow
airflow: $(AIRFLOW)/.ready ## install Airflow, in an environment of its own

.PHONY: faults
faults: $(READY) ## faults done to real releases: less than an hour, and a table of what was expected and seen
	$(BIN)/python -m tests.faults

PART ?=
.PHONY: drill drill-status
drill: $(READY) $(AIRFLOW)/.ready ## the longer drills and the faults, what did not pass on these files; PART=noise for one part
	env -u PYTHONDONTWRITEBYTECODE $(BIN)/python -m tests.drills $(PART)

drill-status: $(READY) ## when each part of the drills last ran, on which commit, and what has not run on this one
	@$(BIN)/python -m tests.drills --status

BENCH := $(WORK)/bench/venv
BENCH_READY := $(BENCH)/.ready
OPTIONS ?=

$(BENCH_READY): pyproject.toml constraints.txt benchmarks/requirements.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; install it or set PYTHON=" >&2; exit 1; }
	@mkdir -p $(WORK)/bench
	@test -x $(BENCH)/bin/python || $(PYTHON) -m venv $(BENCH)
	@if command -v uv >/dev/null 2>&1; then \
		uv pip install -q --compile-bytecode --python $(BENCH)/bin/python -r benchmarks/requirements.txt; \
	else \
		$(BENCH)/bin/python -m pip install -q --disable-pip-version-check -r benchmarks/requirements.txt; \
	fi
	@touch $@

.PHONY: bench
bench: $(BENCH_READY) ## prdp beside DuckDB, Polars, Dask and Spark, in an environment of its own; OPTIONS="--records 64000000"
	$(BENCH)/bin/python -m benchmarks $(OPTIONS)

.PHONY: bench-scale bench-stages bench-spark-model bench-figures
bench-scale: $(BENCH_READY) ## a billion records, 10,000 files, a file of 10 GiB: 17 GB of disk, about an hour
	$(BENCH)/bin/python -m benchmarks.scale $(OPTIONS)

bench-stages: $(BENCH_READY) ## where the processors' time of a release goes
	$(BENCH)/bin/python -m benchmarks.stages $(OPTIONS)

bench-spark-model: $(READY) ## what Spark's event logs say of tasks, shuffles and the driver
	$(BIN)/python -m benchmarks.spark_model $(OPTIONS)

bench-figures: $(READY) ## the figures of docs/performance.md and the README, from docs/performance/measured.json
	$(BIN)/python -m benchmarks.charts $(OPTIONS)

.PHONY: bench-kernels
bench-kernels: $(READY) ## how fast noise, losses and curves are, within one process
	$(BIN)/python -m benchmarks.kernels $(OPTIONS)

.PHONY: figures
figures: $(READY) ## the tables and pictures of the pages in docs/
	$(BIN)/python -m benchmarks.economy
	$(BIN)/python -m benchmarks.groupwise
	$(BIN)/python -m benchmarks.stable
	$(BIN)/python -m benchmarks.study
	$(BIN)/python -m benchmarks.tight
	$(BIN)/python -m benchmarks.sizes
	$(BIN)/python -m benchmarks.pictures
	$(BIN)/prdp explain conf/plans/table-1.yaml --plot docs/plan/table-1.svg
	$(BIN)/prdp study compare --standard-error 30 --total 500 --limit 1 --plot docs/calibration/families.png

.PHONY: docs
docs: $(READY) ## the pages of docs/ as a site in .work/docs
	$(BIN)/mkdocs build -f mkdocs.yml -d $(CURDIR)/$(WORK)/docs
	@echo "open $(WORK)/docs/index.html"

.PHONY: pack
pack: $(READY) ## what Spark's workers need of prdp, for spark-submit --py-files
	@mkdir -p $(WORK)
	$(BIN)/python -m jobs.submit pack $(WORK)/prdp.zip

# The cluster in a box (docker-compose.yml): Docker where its engine runs, else podman-compose where podman does.
COMPOSE ?= $(shell if docker compose version >/dev/null 2>&1 && docker info >/dev/null 2>&1; then echo docker compose; \
	elif podman info >/dev/null 2>&1; then PATH="$$PATH:$(CURDIR)/$(BIN)" command -v podman-compose; fi)
BOX = $(COMPOSE) --profile people
INIT ?= catatonit
INIT_HOMES := /usr/local/libexec/podman:/usr/local/lib/podman:/usr/libexec/podman:/usr/lib/podman
DAG ?= prdp_release
export PRDP_SECRETS ?= $(CURDIR)/$(WORK)/box/secrets

.PHONY: engine
engine:
	@test -n "$(COMPOSE)" || { echo "error: no container engine runs here:" \
		"start Docker (with compose), or install podman, buildah, catatonit and podman-compose" >&2; exit 1; }
	@test -z "$(findstring podman,$(notdir $(firstword $(COMPOSE))))" || PATH="$$PATH:$(INIT_HOMES)" command -v $(INIT) >/dev/null \
		|| { echo "error: podman needs $(INIT) for a container's first process (init: true): install $(INIT)" >&2; exit 1; }

.PHONY: up
up: engine $(READY) ## start the cluster in a box: Spark, Dask, the ledger on PostgreSQL, Airflow
	$(BIN)/python box/make_secrets.py $(PRDP_SECRETS)
	for each in master ledger airflow; do $(COMPOSE) build $$each || exit 1; done  # one after the other: they share stages
	$(COMPOSE) up -d
	@echo "Airflow: http://127.0.0.1:$${AIRFLOW_PORT:-8080}, as admin with the password in $(PRDP_SECRETS)/airflow_password"

.PHONY: demo-cluster
demo-cluster: engine ## release synthetic microdata on the cluster in a box, through Airflow, and verify what was published
	$(BOX) run --rm --no-deps generate
	$(BOX) exec -T airflow trigger-release demo/plan.yaml $(DAG)
	$(BOX) run --rm --no-deps submit prdp verify /srv/prdp/releases/cbp-synthetic
	$(BOX) run --rm --no-deps submit prdp ledger show

.PHONY: down
down: engine ## stop the cluster in a box; its volumes stay, with the ledger, the microdata and the releases
	$(BOX) down

COMPILE = uv pip compile -q --universal --python-version 3.11 --custom-compile-command 'make lock'
HASHES = --generate-hashes --no-annotate
.PHONY: lock
lock: ## write the locks of what was tested (needs uv)
	$(COMPILE) --all-extras pyproject.toml -o constraints.txt
	$(COMPILE) $(HASHES) -c constraints.txt --all-extras pyproject.toml -o requirements/all.txt
	@# what builds prdp is locked as well
	echo setuptools | $(COMPILE) $(HASHES) -c constraints.txt pyproject.toml - -o requirements/release.txt
	$(COMPILE) $(HASHES) conf/airflow/requirements.txt -o conf/airflow/constraints.txt

.PHONY: clean
clean: ## remove what was made, but the ledger of `make release` and what it published
	rm -rf .venv
	@# a ledger that is gone has forgotten what was lost, and one whose releases are gone refuses the next run
	test ! -d $(WORK) || find $(WORK) -mindepth 1 -maxdepth 1 ! -name ledger ! -name releases -exec rm -rf {} +
