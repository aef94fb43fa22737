# make help lists the targets. Needs python3 (3.11 or newer), git and make; the rest is made here, in .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
JOBS ?= 2
DEMO := build/demo
# Where Python keeps compiled files next to sources is the caller's choice; the demo package must not carry any.
export PYTHONDONTWRITEBYTECODE ?= 1

.DEFAULT_GOAL := help
.PHONY: help demo test smoke lint docs bench clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 8

$(READY): pyproject.toml hooks/environment.py
	$(PYTHON) hooks/environment.py . --venv $(VENV) --extra dev --cxx template
	@touch $@

demo: $(READY) ## generate a softmax package in build/demo, compile it, simulate it, test it
	rm -rf $(DEMO)
	$(BIN)/copier copy --quiet --trust --defaults --no-cleanup --vcs-ref HEAD \
	    -d kernel_name=softmax -d compile_check=install . $(DEMO)
	cd $(DEMO) && .venv/bin/python -m pytest --level l0 -q
	@echo
	@echo "The package is in $(DEMO). Everyday form: copier copy --trust $(CURDIR) my-kernel"

test: lint ## everything that CI runs
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

smoke: $(READY) ## only the ladder: every starter, in every element type
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m ladder

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

docs: $(READY) ## bring README.md's tables and docs/rules.md up to date
	$(BIN)/python tests/tables.py

bench: $(READY) ## how long rendering takes
	$(BIN)/python benchmarks/render.py

clean: ## remove .venv and build (the compiler stays: python -m harness toolchain remove)
	rm -rf $(VENV) build
