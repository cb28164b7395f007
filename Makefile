# Two commands matter: `make demo` and `make test`. Each sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test check audit format bench prove soak docs site clean

$(STAMP): pyproject.toml uv.lock
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	test -x $(BIN)/uv || $(BIN)/python -m pip install --quiet --disable-pip-version-check "uv>=0.5"
	VIRTUAL_ENV= UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact --all-extras --compile-bytecode
	$(BIN)/python -m compileall -q src || true
	touch $(STAMP)

demo: $(STAMP)
	$(BIN)/milepost demo
	$(BIN)/python examples/fhir_import/demo.py
	$(BIN)/python examples/diamonds/demo.py

# Four processes read the tests: what the first compiles, the others need not.
test: $(STAMP)
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports

audit: $(STAMP)                    ## known vulnerabilities of the locked dependencies, where reachable
	.ci/audit

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)                     ## write the generated diagrams and reference pages
	$(BIN)/python -m tools.reference

site: $(STAMP)                     ## build the documents as a site, build/site/index.html; a broken link fails
	VIRTUAL_ENV= UV_PROJECT_ENVIRONMENT=$(VENV) $(BIN)/uv sync --quiet --frozen --inexact --all-extras --group docs
	$(BIN)/python -m sphinx -q -W --fresh-env --write-all --keep-going -c docs/site . build/site

prove: $(STAMP)                    ## the full-size proofs: a tenth of each runs in `make test`
	MILEPOST_PROVE=1 $(BIN)/python -m pytest -n 0 --timeout 3600 -m prove

bench: $(STAMP)                    ## ratios beside raw SQL on the same schema, interleaved
	$(BIN)/python -m benchmarks.triggers
	$(BIN)/python -m benchmarks.store

soak: $(STAMP)                     ## long runs: steady state with autovacuum, and an old transaction held open
	$(BIN)/python -m benchmarks.soak
	$(BIN)/python -m benchmarks.limited_soak

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .import_linter_cache
