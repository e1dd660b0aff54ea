# Everything here works on a machine that has only Python >= 3.11, make and pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
# Of `make test-slow`.
PART ?= 1/1
# Of 18,000 modules that come along a few thousand are ever imported: these are compiled when they are, and kept,
# whatever the surroundings say (a minute and a half of an installation).
PIP := $(BIN)/python -m pip install --no-compile --quiet --disable-pip-version-check
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-machines lint types layers unit docs docs-links format lock audit fuzz gpu release findings clean

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 15

$(STAMP): pyproject.toml papers/pyproject.toml constraints.txt hatch_build.py $(wildcard src/decrescendo/*/*/*.[ch])
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@# The lock file names everything, so nothing has to be looked for: its odd lines, its even lines and our own code
	@# at once, as pip uses one core. Where that is not all (another system, another Python), pip looks for the rest.
	sed -n 'p;n' constraints.txt | $(PIP) --no-deps -r /dev/stdin & odd=$$!; \
	sed -n 'n;p' constraints.txt | $(PIP) --no-deps -r /dev/stdin & even=$$!; \
	$(PIP) --no-deps -e . -e ./papers & own=$$!; \
	wait $$odd && wait $$even && wait $$own && $(BIN)/python -m pip check || \
	{ wait; $(PIP) -c constraints.txt -e '.[plots,federated,studio,dev]' -e ./papers; }
	@# What everything here imports is compiled now, by two processes: the first command does not wait for it.
	$(BIN)/python -W ignore -c "import decrescendo.training, peft, transformers.trainer" & \
	$(BIN)/python -W ignore -c "import decrescendo.cli, scipy.stats, pandas, datasets, flwr.server, sklearn, matplotlib.pyplot"; wait
	touch $(STAMP)

demo: $(STAMP)  ## train plain, constant and dynamic DP-SGD on real digits under one budget (about two minutes)
	$(BIN)/decrescendo demo

test: $(STAMP)  ## everything CI runs, two jobs at a time
	$(MAKE) -j 2 unit lint types layers

lint: $(STAMP)  ## ruff: style and errors
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)  ## strict types on src and papers/src
	$(BIN)/pyrefly check --python-interpreter-path $(BIN)/python

layers: $(STAMP)  ## who may import whom (pyproject.toml, import-linter)
	$(BIN)/lint-imports

# Three at once on two cores (four take longer): tests of several processes wait a quarter of their time.
unit: $(STAMP)  ## unit, contract, property and statistical tests, doctests and pages
	$(BIN)/python -m pytest -n 3 --dist worksteal -q

test-slow: $(STAMP)  ## the slow tests too, with types checked in every call (ten hours of a core; a twentieth: PART=3/20)
	$(BIN)/python -m pytest -n 2 --dist worksteal -q --jaxtyping-packages=decrescendo,decrescendo_papers,runtime_types.checker -m "not paper and not gpu" --hypothesis-profile thorough --part $(PART)

test-machines: $(STAMP)  ## what hangs on arithmetic, words or files, as on other processors, threads, locales, users, newest versions (two hours)
	$(BIN)/python tests/support/machines.py $(LEGS) $(if $(TORCH),--torch $(TORCH))

$(DOCS_STAMP): $(STAMP)
	$(PIP) -c constraints.txt -e '.[docs]'
	touch $(DOCS_STAMP)

docs: $(DOCS_STAMP)  ## the documentation site, into site/ (offline, warnings are errors, links checked)
	$(BIN)/python -m sphinx -W --keep-going -n -q -E -a -b html docs site
	$(BIN)/python docs/_ext/check_site.py site
	@echo "open site/index.html"

docs-links: $(DOCS_STAMP)  ## ask the network about the links that leave the site
	$(BIN)/python -m sphinx -q -b linkcheck docs site/.links

format: $(STAMP)  ## rewrite in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock:  ## resolve the newest versions again into constraints.txt
	rm -rf .lock && $(PYTHON) -m venv .lock
	.lock/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -e '.[plots,federated,studio,docs,dev]' -e ./papers
	.lock/bin/python -m pip freeze --all --exclude pip --exclude-editable | sed 's/+cpu//' > constraints.txt
	rm -rf .lock

audit:  ## ask the databases of known vulnerabilities about every pinned dependency (needs the network)
	test -x .audit/bin/pip-audit || ($(PYTHON) -m venv .audit && .audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit)
	.audit/bin/pip-audit -r constraints.txt --no-deps --disable-pip --strict

fuzz: $(STAMP)  ## fuzz everything that reads, with atheris (about twenty minutes; writes results/fuzz.json)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check atheris
	$(BIN)/python -m benchmarks.fuzz

gpu: $(STAMP)  ## everything that needs a CUDA device, within 25 minutes (without one it says so); writes results/gpu
	$(BIN)/python benchmarks/gpu.py

RELEASE := .release/bin/python
PLATFORMS := linux-x86_64 linux-aarch64 macos-arm64 windows-x86_64

# The wheels are built from the unpacked sdist: what is not in it is in no wheel.
release:  ## an sdist and a wheel a platform, with the compiled kernels inside, into dist/; inspected, and tried here (ten minutes)
	rm -rf dist .release && $(PYTHON) -m venv .release
	$(RELEASE) -m pip install --quiet --disable-pip-version-check build==1.6.1 hatchling==1.27.0 ziglang==0.15.2
	$(RELEASE) -m build --no-isolation --sdist
	mkdir .release/source && tar -xzf dist/*.tar.gz -C .release/source --strip-components 1
	for platform in $(PLATFORMS); do \
	  DECRESCENDO_TARGET=$$platform $(RELEASE) -m build --no-isolation --wheel --outdir dist .release/source || exit 1; done
	$(PYTHON) tests/support/release.py dist

# Not in CI: they need the network, and fail when somebody else's software has changed.
findings:  ## what outside libraries really do: installs them in a temporary folder, and fails where that changed
	@failed=0; for file in findings/*.sh; do \
	  echo "== $$file"; bash $$file || { echo "changed, or not to be had: $$file"; failed=1; }; \
	done; exit $$failed

clean:  ## remove the environment and caches
	rm -rf $(VENV) .lock .audit .newest .release dist site docs/reference/api docs/reference/command-line.md .pytest_cache .ruff_cache .hypothesis
