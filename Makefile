# Two commands from a fresh clone: `make demo` and `make test`. Both set up .venv first; running them again reinstalls nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test lint types verify docs clean

demo: $(VENV)/.installed
	$(BIN)/graphjoule demo

test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n auto --dist worksteal  # on all cores

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check src tests examples reproduction tools docs
	$(BIN)/ruff format --check src tests examples reproduction tools docs/*.py docs/extensions

types: $(VENV)/.installed-lint
	$(BIN)/mypy

verify: $(VENV)/.installed-test
	$(BIN)/graphjoule verify reproduction/results  # no training: every number of README and docs from the records

docs: $(VENV)/.installed-docs
	$(BIN)/python -m doctest docs/extensions/mathml.py docs/extensions/offline.py
	rm -rf build/docs
	$(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs
	@echo "the site: build/docs/index.html"

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.created:
	$(PYTHON) -c 'import sys; sys.exit("graphjoule needs Python 3.11 or newer, %s is %d.%d" % (sys.executable, *sys.version_info[:2]) if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e .
	@touch $@

# pip's --group is newer than the pip of Python 3.11, hence the names read from pyproject.toml.
$(VENV)/.installed-%: $(VENV)/.installed
	$(PIP) install -c constraints.txt $$($(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["$*"], sep="\n")')
	@touch $@
