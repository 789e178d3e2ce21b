# Two commands do everything on a fresh machine: `make demo` and `make test`.
# Each sets up the virtual environment it needs, from this project's files alone.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
# Tests mostly wait, for daemons, jobs and browsers: two for each core keep it busy.
WORKERS ?= $(shell echo $$((2 * $$(nproc))))
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Outside of this folder, so that a fresh clone has it as well. It goes by the content of files, not by their paths.
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gpuyard-test

# Compiled modules and tests are kept, whatever the shell says: thousands of commands are started.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-system lint bench bench-simulator bench-queue bench-server bench-page bench-sharing bench-recording bench-learned bench-learning bench-kubernetes bench-adaptation screenshots chaos clean

demo: $(VENV)/.installed
	$(BIN)/gpuyard demo $(ARGS)

# What needs nothing but Python. Lint runs beside it, with its words kept for the end.
test: $(VENV)/.installed-dev
	@words=$$(mktemp); trap 'rm -f $$words' EXIT; \
	$(MAKE) --no-print-directory lint >$$words 2>&1 & lint=$$!; \
	$(PYTEST) -m 'not system' $(ARGS); tests=$$?; \
	wait $$lint; lint=$$?; cat $$words; \
	test $$tests -eq 0 && test $$lint -eq 0

# What needs a browser, Kubernetes, Prometheus, tmux or root; as root it installs them (Debian, Ubuntu).
test-system: $(VENV)/.installed-dev
	bash tests/system-needs.sh
	$(PYTEST) -m system $(ARGS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --cache-dir $(CACHE)/mypy
	$(BIN)/lint-imports

bench: bench-simulator bench-queue bench-sharing bench-learned bench-recording bench-server bench-page

bench-simulator: $(VENV)/.installed-dev
	$(BIN)/python bench/simulator.py $(ARGS)

bench-queue: $(VENV)/.installed-dev
	$(BIN)/python bench/queue.py $(ARGS)

bench-server: $(VENV)/.installed-dev
	$(BIN)/python -m bench.server $(ARGS)

bench-sharing: $(VENV)/.installed-dev
	$(BIN)/python bench/sharing.py $(ARGS)

bench-learned: $(VENV)/.installed-dev
	$(BIN)/python bench/learned.py $(ARGS)

bench-learning: $(VENV)/.installed-dev
	$(BIN)/python bench/learning.py $(ARGS)

bench-recording: $(VENV)/.installed-dev
	$(BIN)/python -m bench.recording $(ARGS)

# Wants the API server of the tests: bash tests/kube/build-apiserver.sh
bench-kubernetes: $(VENV)/.installed-dev
	$(BIN)/python -m bench.kubeplans
	$(BIN)/python -m bench.kubetimes
	$(BIN)/python -m bench.kubernetes $(ARGS)

# Some four minutes; with ARGS=--record, which records the examples anew, half an hour.
bench-adaptation: $(VENV)/.installed-dev
	$(BIN)/python -m bench.adaptation $(ARGS)

# Wants chromium (apt-get install chromium), as the tests of the page do.
bench-page: $(VENV)/.installed-dev
	$(BIN)/python -m bench.page $(ARGS)

# Makes the README's pictures anew.
screenshots: $(VENV)/.installed-dev
	$(BIN)/python docs/screenshots.py $(ARGS)

# Kills the daemon 200 times at random instants under load; GPUYARD_CHAOS_SEED repeats a run that failed.
chaos: $(VENV)/.installed-dev
	GPUYARD_CHAOS_KILLS=$${GPUYARD_CHAOS_KILLS:-200} $(BIN)/python -m pytest -s tests/chaos/test_random_kills.py $(ARGS)

$(VENV)/.installed: pyproject.toml
	$(call install,.)

# It brings what the demo needs as well: one run of pip, not two.
$(VENV)/.installed-dev: pyproject.toml
	$(call install,.[dev])
	touch $(VENV)/.installed $@

define install
	$(PYTHON) -c 'import sys; sys.exit("gpuyard needs Python 3.11 or newer; try make PYTHON=python3.11" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable '$(1)'
	touch $@
endef

clean:
	rm -rf $(VENV) demo-report .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
