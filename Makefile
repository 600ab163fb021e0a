# Everything people and CI do with this repository. Each target makes the virtual environment it
# needs: `make test` works in a fresh clone. `make PYTHON=python3.12 ...` chooses an interpreter,
# ARGS adds arguments: `make test ARGS="-k kill"`, `make bench ARGS=--quick`.

SHELL := /bin/sh
ARGS ?=
export PYTHON

BIN := .venv/bin
STAMP := .venv/.installed

# A virtual environment does not survive being moved or copied, nor its interpreter's removal.
ifneq ($(file <$(STAMP)),$(CURDIR))
.PHONY: $(STAMP)
else ifeq ($(realpath $(BIN)/python),)
.PHONY: $(STAMP)
endif

.PHONY: help demo test test-long steady check format bench torture clean tools

help:
	@echo "make demo       see it work, in half a minute"
	@echo "make test       run the tests; a few minutes on two cores"
	@echo "make test-long  run those that take their time: kills at each step, floods, other users"
	@echo "make steady     run the tests again and again beside hogs, and list what failed"
	@echo "make check      format, lint and types, as CI checks them"
	@echo "make format     put the code into shape"
	@echo "make bench      measure it against the least a machine can do"
	@echo "make torture    kill, stop and starve it for ten minutes, and see what was promised kept"
	@echo "make clean      remove what the other targets made"

demo: $(STAMP)
	@$(BIN)/holdfast demo $(ARGS)

# Tests wait as much as they work: two for each processor. The longest begin first, one by one.
PYTEST := -n $(shell expr 2 \* $$(nproc 2>/dev/null || echo 2)) --dist load --maxschedchunk 1

test: $(STAMP) tools
	$(BIN)/python -m pytest $(PYTEST) $(ARGS)

test-long: $(STAMP) tools
	$(BIN)/python -m pytest $(PYTEST) -m long $(ARGS)

steady: $(STAMP) tools
	$(BIN)/python .ci/steady --with "$(PYTEST)" $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

torture: $(STAMP)
	$(BIN)/python -m torture $(ARGS)

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests bench torture -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml src/holdfast/_version.py
	@.ci/setup environment

# What the tests use besides Python: faketime moves their clock, bash is what commands run in,
# completion is tried in all three shells; tmux holds terminals, and vim, less and node are driven in
# them; strace has system calls fail; npm brings the suite that the MCP server is tried with;
# bubblewrap makes sandboxes; and containers are run by an engine that the tests start (docker.io,
# iproute2), of an image made of busybox.
tools:
	@.ci/setup tools
