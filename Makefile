# make demo   author "swiglu backward" from the bundled recording, on any machine: no GPU, no key
# make test   the whole CPU suite
# make check  formatting, lint, types, import contracts, generated documentation
# make fix    what the tools can mend themselves

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: demo test check fix install clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "error: Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "\n\nhint: make PYTHON=python3.11 $(MAKECMDGOALS)")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)
	$(BIN)/coda-agent author "swiglu backward" --llm replay

test: $(STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/cog --check -P README.md AGENTS.md examples_curated/README.md examples_curated/records/README.md authored_kernels/README.md agent/tasks/README.md || { echo "generated text is stale, as after a kernel was kept or a task added: make fix"; exit 1; }
	$(BIN)/codespell

fix: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/cog -r -P README.md AGENTS.md examples_curated/README.md examples_curated/records/README.md authored_kernels/README.md agent/tasks/README.md

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
