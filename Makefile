# Needs Python 3.11+ and make, nothing else. Every target is safe to repeat.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# The torch wheel the constraints name; anything newer pulls gigabytes of GPU packages on some machines.
TORCH := $(shell sed -n 's/^\(torch==[0-9.]*\).*/\1/p' constraints.txt)

.PHONY: help demo test lint types torture fuzz guided bench avalanche docs dist clean
help:            ## show the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "manymodes needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(READY)

OUT ?= runs/demo
SEEDS ?= 0,1,2
DEMO_ARGS ?=
demo: $(READY)   ## the main job on real handwritten digits: table, then an HTML report
	$(BIN)/manymodes compare --config demo --seeds $(SEEDS) --out $(OUT) $(DEMO_ARGS)
	$(BIN)/manymodes report $(OUT)

lint: $(READY)   ## ruff and import-linter
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/lint-imports --no-cache

types: $(READY)  ## mypy, strict
	$(BIN)/mypy

test: lint types ## everything: ruff, mypy, import-linter, doctests, pytest
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal --doctest-modules src tests

KILLS ?= 100
CASES ?= 2000
SECONDS ?= 600
torture: $(READY) ## kill, starve and damage runs of every strategy; a table of what was tried, survived and lost
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --kills $(KILLS) --cases 0

fuzz: $(READY)   ## hostile files: 2,000 of each kind (CASES=...)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.torture --kills 0 --cases $(CASES)

BENCH_ARGS ?=
guided: $(READY) ## fuzzing guided by coverage, where our own code reads bytes (needs atheris; SECONDS=...)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.fuzz.guided $(SECONDS)

bench: $(READY)  ## speed and memory beside their bounds, one table; JSON and picture in benchmarks/results
	$(BIN)/python benchmarks/bench.py $(BENCH_ARGS)

# Avalanche needs a torchvision, which nothing else here may find. Its environment is lent what the first one has:
# torch and the rest are there once.
AVALANCHE := .venv-avalanche/.ready
SITE := import sysconfig; print(sysconfig.get_path("purelib"))
$(AVALANCHE): $(READY) benchmarks/peers.txt
	rm -rf .venv-avalanche
	$(BIN)/python -m venv --without-pip .venv-avalanche
	site=$$(.venv-avalanche/bin/python -c '$(SITE)'); \
	echo "import site; site.addsitedir('$$($(BIN)/python -c '$(SITE)')')" > "$$site/lent.pth"
	$(BIN)/python -m pip --disable-pip-version-check --python .venv-avalanche/bin/python \
		install --quiet -c constraints.txt -r benchmarks/peers.txt
	touch $@

avalanche: $(AVALANCHE) ## MOTA as a strategy of Avalanche, and methods beside Avalanche's: tests and example
	OMP_NUM_THREADS=1 .venv-avalanche/bin/python -m pytest tests/test_contrib_avalanche.py tests/test_peers.py \
		tests/release/test_examples.py::test_the_one_for_avalanche

docs: $(READY)   ## the site, in site/index.html; a warning is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

dist: $(READY)   ## wheel and sdist, in dist/
	rm -rf build dist
	$(BIN)/python -m build --no-isolation

clean:           ## remove the virtual environment and caches
	rm -rf .venv .venv-avalanche build dist site src/*.egg-info .mypy_cache .ruff_cache .pytest_cache
