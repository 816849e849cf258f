# tarry: `make` alone lists the commands. `make demo` and `make test` need no other step.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
PYTEST := $(BIN)/python -m pytest
JOBS   ?= 2
BROKER ?=
ARGS   ?=

.DEFAULT_GOAL := help
.PHONY: help demo up test test-fast check format lock generate bench-router clean

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

test: $(READY) ## Run all tests, with coverage (BROKER=all for both series)
	@BROKER=$(BROKER) $(PYTEST) -n $(JOBS) --dist loadgroup --cov --cov-report=term $(ARGS)

test-fast: $(READY) ## Run the unit tests only: no broker, no Postgres
	@$(PYTEST) tests/unit -n $(JOBS) $(ARGS)

check: $(READY) ## Lint, types, import layers, and that generated files are fresh
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m tarry.generate --check

format: $(READY) ## Format the code and mend what the linter can mend
	@$(BIN)/ruff check --fix . ; $(BIN)/ruff format .

generate: $(READY) ## Write the generated files anew: definitions, schema, contract code, reference pages
	@$(BIN)/python -m tarry.generate

lock: $(READY) ## Pin the newest allowed versions in requirements.lock
	@$(BIN)/uv pip compile --upgrade --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links --extra embedded --group dev pyproject.toml -o requirements.lock

bench-router: $(READY) ## Measure the router against raw publishing and against the same loop on aio-pika
	@$(BIN)/python -m benchmarks.router $(ARGS)

clean: ## Remove the virtual environment, caches and kept data
	rm -rf $(VENV) .tarry .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* htmlcov build dist
