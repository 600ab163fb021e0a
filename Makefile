# Everything people and CI do with this repository. Each target makes the virtual environment it
# needs: `make test` works in a fresh clone. `make PYTHON=python3.12 ...` chooses an interpreter,
# ARGS adds arguments: `make test ARGS="-k kill"`, `make bench ARGS=--quick`.

SHELL := /bin/sh
ARGS ?=
export PYTHON
# Hundreds of programs are started from here: none of them is to compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

BIN := .venv/bin
STAMP := .venv/.installed

# A virtual environment does not survive being moved or copied, nor its interpreter's removal.
ifneq ($(file <$(STAMP)),$(CURDIR))
.PHONY: $(STAMP)
else ifeq ($(realpath $(BIN)/python),)
.PHONY: $(STAMP)
endif

.PHONY: help demo test test-long steady check format bench torture picture clean tools agents

help:
	@echo "make demo       see it work, in half a minute"
	@echo "make test       run the tests; a few minutes on two cores"
	@echo "make test-long  run those that take their time: kills at each step, floods, other users"
	@echo "make steady     run the tests again and again beside hogs, and list what failed"
	@echo "make check      format, lint, types, rooms and what is written by scripts, as CI checks them"
	@echo "make format     put the code into shape, and write the client without asyncio anew"
	@echo "make bench      measure it against the least a machine can do"
	@echo "make torture    kill, stop and starve it for ten minutes, and see what was promised kept"
	@echo "make picture    draw the picture in the README anew, from a real session"
	@echo "make clean      remove what the other targets made"

demo: $(STAMP)
	@$(BIN)/holdfast demo $(ARGS)

# Tests wait more than they work: three for each processor. The longest begin first, one by one.
PYTEST := -n $(shell expr 3 \* $$(nproc 2>/dev/null || echo 2)) --dist load --maxschedchunk 1

test: $(STAMP) tools
	$(BIN)/python -m pytest $(PYTEST) $(ARGS)

test-long: $(STAMP) tools agents
	$(BIN)/python -m pytest $(PYTEST) -m long $(ARGS)

steady: $(STAMP) tools
	$(BIN)/python .ci/steady --with "$(PYTEST)" $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/sync_client --check

format: $(STAMP)
	$(BIN)/python .ci/sync_client
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP)
	$(BIN)/python -m bench $(ARGS)

torture: $(STAMP)
	$(BIN)/python -m torture $(ARGS)

picture: $(STAMP)
	$(BIN)/python .ci/picture

clean:
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist
	find src tests bench torture -name __pycache__ -prune -exec rm -rf {} +

$(STAMP): pyproject.toml src/holdfast/core/version.py
	@.ci/setup environment

# What the tests use besides Python: faketime moves their clock, bash is what commands run in,
# completion is tried in all three shells; tmux holds terminals, and vim, less and node are driven in
# them; strace has system calls fail; npm brings the suite that the MCP server is tried with;
# bubblewrap makes sandboxes; and containers are run by an engine that the tests start (docker.io,
# iproute2), of an image made of busybox.
tools:
	@.ci/setup tools

# What `make test-long` drives against a model that follows a script, from npm.
agents: tools
	@.ci/setup agents
