# tarry: `make` alone lists the commands. `make demo` and `make test` need no other step.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
JOBS   ?= 5
BROKER ?=
ARGS   ?=
JUNIT  ?= .tarry/tests.xml
COVERAGE ?=
PROOFS := $(wildcard tests/acceptance/test_audit_*.py) \
  tests/acceptance/test_budgets.py \
  tests/acceptance/test_layover.py \
  tests/acceptance/test_import_postgres.py \
  tests/acceptance/test_breaker.py \
  tests/acceptance/test_events.py \
  tests/acceptance/test_serve_bad_requests.py \
  tests/acceptance/test_s3_eligibility.py \
  tests/integration/operations/test_cancel_races.py \
  tests/integration/operations/test_pause_crashes.py \
  tests/integration/operations/review/test_jobs_large_redrive.py \
  tests/integration/web/test_openapi_schemathesis.py \
  tests/integration/client/test_adapters_cut_connections.py

# Tests start hundreds of Python processes: without byte code each of them compiles everything anew.
unexport PYTHONDONTWRITEBYTECODE

# One test file of each kind of promise: the five systems, the pipeline, identity, the audit, an operator's commands, review.
QUICK := tests/unit $(wildcard tests/acceptance/test_s[0-4]_*.py) tests/integration/audit tests/integration/cli \
  tests/integration/store tests/integration/service/test_tap.py \
  tests/integration/router/test_pipeline.py tests/integration/router/test_identity.py \
  tests/integration/operations/test_cli_control.py tests/integration/operations/review/test_redrive.py

.DEFAULT_GOAL := help
.PHONY: help demo up test test-quick test-fast prove test-cuts check format lock generate chaos soak chaos-short fuzz \
  audit-dependencies screenshots bench bench-quick bench-lock bench-router bench-client release docs clean

help: ## List the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | while IFS="$$(printf '\t')" read -r name text; \
	  do printf '  \033[1mmake %-14s\033[0m %s\n' "$$name" "$$text"; done
	@echo; echo "  BROKER=3.10|4.3|all picks the RabbitMQ series, ARGS=... goes to the program behind a command."

$(READY): requirements.lock pyproject.toml
	@sh .ci/bootstrap

demo: $(READY) ## Watch retries happen on a private broker and Postgres, with the balance at the end
	@BROKER=$(BROKER) $(BIN)/tarry demo $(ARGS)

up: $(READY) ## Run the service on a private broker and Postgres until interrupted
	@BROKER=$(BROKER) $(BIN)/tarry up $(ARGS)

EXAMPLES := .tarry/examples-venv

$(EXAMPLES)/.ready: examples/requirements.lock .ci/examples $(READY)
	@sh .ci/examples $(EXAMPLES)

.PHONY: browser prometheus shells runtimes
browser: # does nothing where there is one
	@sh .ci/browser

prometheus: # as above
	@sh .ci/prometheus

shells: # as above
	@sh .ci/shells

runtimes: # as above
	@sh .ci/runtimes

test: $(READY) $(EXAMPLES)/.ready browser prometheus shells runtimes ## Run all tests but the long chaos runs (BROKER=all for both series, COVERAGE=1 measures it)
	@BROKER=$(BROKER) EXAMPLES_PYTHON=$(CURDIR)/$(EXAMPLES)/bin/python $(PYTEST) -m "not chaos" -n $(JOBS) --dist loadscope \
	  --junitxml=$(JUNIT) $(if $(COVERAGE),--cov --cov-report=) $(ARGS)

test-quick: $(READY) ## Under two minutes, for the edit loop: unit tests and one file of each kind, on one broker
	@BROKER=$(BROKER) $(PYTEST) -m "not chaos" -n $(JOBS) --dist loadscope $(QUICK) $(ARGS)

test-fast: $(READY) ## Run the unit tests only: no broker, no Postgres
	@$(PYTEST) tests/unit -n $(JOBS) $(ARGS)

prove: $(READY) ## Run the proofs at their full size, on one series; half an hour each
	@BROKER=$(BROKER) TARRY_AUDIT_CROWD=20000 TARRY_AUDIT_AWAY=30 TARRY_AUDIT_RATE=1000 TARRY_AUDIT_LOST=5000 TARRY_AUDIT_LATE_MS=4000 \
	  TARRY_HAMMER=1000 TARRY_PAUSED=5000 TARRY_BREAKER=2000 TARRY_REVIEW_CROWD=50000 TARRY_SCHEMATHESIS=200 TARRY_BAD_REQUESTS=10000 \
	  CLIENT_CUTS=500 TARRY_ELIGIBILITY=10000 TARRY_BUDGETS=10000 TARRY_LAYOVER_STEP_MS=125 \
	  TARRY_IMPORT_ROWS=10000 TARRY_EVENTS=40000 TARRY_EVENTS_RATE=150 TARRY_EVENTS_BETWEEN=15 TARRY_EVENTS_GAP=10 \
	  $(PYTEST) -n 0 -s -v $(or $(ARGS),$(PROOFS))

test-cuts: $(READY) ## Cut each client's connection 500 times at every step of a failure, and count
	@BROKER=$(BROKER) CLIENT_CUTS=500 $(PYTEST) tests/integration/client/test_adapters_cut_connections.py $(ARGS)

# Kustomizations and patches are no resources; a ServiceMonitor is one of an operator. tests/unit/test_kubernetes.py has those.
MANIFESTS := deploy/kubernetes/secrets.example.yaml deploy/kubernetes/components/autoscaling/autoscaler.yaml \
  $(filter-out %/kustomization.yaml,$(wildcard deploy/kubernetes/base/*.yaml))

# Not --quiet: mkdocs would then not count its warnings.
SITE := mkdir -p .tarry; NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict >.tarry/site.log 2>&1 || { cat .tarry/site.log; exit 1; }

docs: $(READY) ## Write the documentation as a site to .tarry/site
	@$(SITE)
	@echo "Open .tarry/site/index.html"

check: $(READY) ## Lint, types, import layers, generated files, Dockerfile, manifests, the site, known vulnerabilities
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tarry.generate --check
	@$(BIN)/hadolint Dockerfile
	@$(BIN)/kubernetes-validate --strict --quiet --no-warn $(MANIFESTS)
	@$(SITE)
	@$(BIN)/python -m tests.hostile.advisories

screenshots: $(READY) browser ## Write the pictures of the dashboard and of a terminal to docs/img/
	@BROKER=$(BROKER) $(BIN)/python -m tests.integration.web.screenshots $(ARGS)
	@BROKER=$(BROKER) $(BIN)/python -m tests.integration.demo.recording

audit-dependencies: $(READY) ## Ask the package index about known vulnerabilities of every pinned package
	@$(BIN)/python -m tests.hostile.advisories

format: $(READY) ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

generate: $(READY) ## Write the generated files anew: definitions, schema, contract code, reference pages
	@$(BIN)/python -m tarry.generate

lock: $(READY) ## Pin the newest allowed versions in requirements.lock
	@$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --extra server --extra otel --extra embedded --group dev pyproject.toml -o requirements.lock

chaos: $(READY) ## Break everything under load, on every broker, and prove that nothing is lost (an hour; docs/reliability.md)
	@mkdir -p .tarry
	@$(BIN)/python -m tests.chaos --json .tarry/chaos.json $(if $(ARGS),$(ARGS),--page docs/reliability.md)

soak: $(READY) ## An hour at 500 messages a second with a fault each minute; nothing is lost and nothing grows
	@mkdir -p .tarry
	@$(BIN)/python -m tests.chaos.soak --json .tarry/soak.json $(if $(ARGS),$(ARGS),--page docs/reliability.md)

chaos-short: JUNIT = .tarry/chaos-short.xml
chaos-short: $(READY) ## The short form of every fault, of the cluster's and of the soak (BROKER=all for both series)
	@BROKER=$(BROKER) $(PYTEST) -m chaos -n 0 --junitxml=$(JUNIT) -v $(ARGS)

fuzz: $(READY) ## Throw a million broken requests at the decoder, on all cores (ARGS='--cases N --seed S --replay FILE')
	@$(BIN)/python -m tests.hostile.fuzz $(ARGS)

BENCH_VENV  := .tarry/bench-venv
BENCH_READY := $(BENCH_VENV)/.ready

$(BENCH_READY): benchmarks/requirements.lock $(READY)
	@echo "==> installing what benchmarks/requirements.lock pins into $(BENCH_VENV) (once)" >&2
	@$(BIN)/python -m venv --clear $(BENCH_VENV)
	@$(BENCH_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
	  --requirement benchmarks/requirements.lock
	@touch $@

bench: $(BENCH_READY) ## Measure tarry side by side with what people would pick instead (docs/performance.md)
	@$(BIN)/python -m benchmarks.suite $(ARGS)

bench-quick: $(BENCH_READY) ## Under five minutes: a few ratios with floors, against regressions
	@$(BIN)/python -m benchmarks.suite --quick $(ARGS)

bench-lock: $(READY) ## Pin the newest versions of the contenders in benchmarks/requirements.lock
	@$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links benchmarks/requirements.in -o benchmarks/requirements.lock

bench-router: $(READY) ## Measure the router against raw publishing and against the same loop on aio-pika
	@$(BIN)/python -m benchmarks.router $(ARGS)

bench-client: $(READY) ## Measure what the client adds to a bare consumer
	@$(BIN)/python -m benchmarks.client $(ARGS)

release: $(READY) ## Build sdist, wheel, notes and SBOM into dist/, and try the wheel in new environments (ARGS='--tag v1.2.3')
	@$(BIN)/python .ci/release.py $(ARGS)

clean: ## Remove the virtual environment, caches and kept data
	rm -rf $(VENV) .tarry .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov build dist
