# Callsheet's tasks. Each one sets up what it needs first; `make setup` does only that.
#
#   PYTHON=...        the interpreter to create .venv with (python3; 3.11 or later)
#   TORCH_INDEX=...   an index to take torch from, for instance one with CPU-only builds; an installed torch is kept
#   PYTEST_ARGS=...   arguments for `make test`, which then runs in one process unless -n is among them; for `make nightly`
#                     the files of tests/soak that are run
#   UPGRADE=1         lets `make lock` move to newer versions

PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.callsheet-setup
# What the demo needs: no benchmarks, no linters, no docs.
DEMO_SETUP := .venv/.callsheet-demo
# What requirements.lock pins; a newer one is a decision, as its builds are large and tied to drivers.
TORCH := 2.13.0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes start here, and each would compile the sources again. `make clean` removes what is kept of them.
export PYTHONDONTWRITEBYTECODE :=

.NOTPARALLEL:
.PHONY: demo test examples browser screenshots compose-smoke conformance conformance-sglang conformance-vllm agents check budget pythons docs lint types layers protos protos-lint protos-check bench nightly lock setup clean e2b trainers harbor-tasks train-example v2 gpu

demo: $(DEMO_SETUP)
	scripts/system_packages.sh demo
	$(BIN)/callsheet demo

# Tests of one file share a worker and its servers; the order is that of `testpaths`.
WORKERS := --dist loadfile --no-loadscope-reorder
test: $(SETUP)
	scripts/system_packages.sh test
	$(BIN)/pytest $(WORKERS) $(or $(PYTEST_ARGS),-n auto)

# Not a part of `make test`; the stage of the documentation has the time for them.
examples: $(SETUP)
	scripts/system_packages.sh demo
	$(BIN)/pytest tests/examples

AXE := build/axe/axe_playwright_python/axe.min.js
# Not a part of `make test` either: the dashboard in a real browser. axe-core comes in a package, whose hash is checked.
browser: $(SETUP) $(AXE)
	scripts/system_packages.sh browser
	$(BIN)/pytest tests/browser

$(AXE): tests/browser/axe.txt | $(SETUP)
	$(BIN)/python -m pip install --quiet --upgrade --no-deps --require-hashes --target build/axe --requirement $<
	touch $@

# The pictures of the documentation, taken by the same tests.
screenshots: export CALLSHEET_SCREENSHOTS := $(CURDIR)/docs/images
screenshots: browser

# The newer versions of Python that this machine has, without torch.
pythons: $(SETUP)
	scripts/system_packages.sh demo
	$(BIN)/python scripts/others.py pythons

# Not a part of `make test`, which runs three of the ten tasks. docs/how-to/harbor-tasks.md.
harbor-tasks: $(SETUP)
	scripts/system_packages.sh test
	$(BIN)/pytest -s tests/harbor

# Not a part of `make test` either: it needs a Docker engine. docs/how-to/docker-compose.md.
compose-smoke: $(SETUP)
	$(BIN)/python scripts/compose_smoke.py

# Not a part of `make test` either: each installs a real server of gigabytes below build/, starts it and stops it.
conformance: $(SETUP)
	$(BIN)/python scripts/others.py conformance offline

conformance-sglang: $(SETUP)
	$(BIN)/python scripts/others.py conformance sglang sglang-load

conformance-vllm: $(SETUP)
	$(BIN)/python scripts/others.py conformance vllm

# Not a part of `make test` either: it installs agents from PyPI and npm below build/, and needs Node 20. AGENTS="codex" for one.
agents: $(SETUP)
	$(BIN)/python scripts/others.py agents $(AGENTS)

# Not a part of `make test` either: it installs E2B's client and its users from PyPI below build/. E2B="2.63.0" for one.
e2b: $(SETUP)
	$(BIN)/python scripts/others.py e2b $(E2B)

# Not a part of `make test` either: real trainers, each in an environment of gigabytes below build/. TRAINERS="trl" for one.
trainers: $(SETUP)
	scripts/system_packages.sh demo
	$(BIN)/python scripts/others.py trainers $(TRAINERS)

# A whole training run with TRL, three seeds, and comparisons with other rollouts. Half an hour. TRAIN_ARGS="--only seeds".
train-example: $(SETUP)
	scripts/system_packages.sh demo
	$(BIN)/python scripts/train_example.py $(TRAIN_ARGS)

# Not a part of `make test` either: an emulated machine with systemd and control groups of version 2, for root with
# debootstrap and QEMU. WAYS="login:up,sharing root" and SUITES="up memory" for some; scripts/v2_ways.sh has them.
v2:
	scripts/v2_machine.sh $(WAYS)

# Not a part of `make test` either: it needs an NVIDIA GPU. Minutes, and 5 GB below TMPDIR. GPU_ARGS="--device cpu --layers 2".
gpu: $(SETUP)
	$(BIN)/python scripts/gpu.py $(GPU_ARGS)

check: budget lint types layers protos-lint protos-check

# Statements by room, beside what each may have. pyproject.toml has the table.
budget: $(SETUP)
	$(BIN)/python scripts/statement_budget.py

# Every page is read anew, as the reference comes from docstrings, options and protos. A warning is an error.
docs: $(SETUP)
	$(BIN)/sphinx-build --fail-on-warning --keep-going --fresh-env --quiet -d build/doctrees docs build/docs

# The hand-written status_pb2.py is named, as the pattern for generated files covers it.
HAND_WRITTEN := protos/callsheet/v1/google_rpc/status_pb2.py
lint: $(SETUP)
	$(BIN)/ruff check . $(HAND_WRITTEN)
	$(BIN)/ruff format --check . $(HAND_WRITTEN)

types: $(SETUP)
	$(BIN)/mypy

layers: $(SETUP)
	$(BIN)/lint-imports

protos-lint: $(SETUP)
	$(BIN)/buf lint

protos-check: $(SETUP)
	$(BIN)/python scripts/generate_protos.py --check

protos: $(SETUP)
	$(BIN)/python scripts/generate_protos.py

bench: $(SETUP)
	$(BIN)/callsheet bench dispatch

# Laws in full size, one after another; `make test` has a small form of each. docs/lab/2026-11-nightly.md gets the result.
nightly: $(SETUP)
	scripts/system_packages.sh test
	$(BIN)/python scripts/nightly.py $(PYTEST_ARGS)

# Versions only: no hashes (builds of torch differ), no addresses, no local versions such as +cpu, and none of the CUDA
# packages, which torch's own metadata pins for each of its builds.
lock: $(SETUP)
	echo 'torch==$(TORCH)' > .venv/torch.txt
	$(BIN)/pip-compile --quiet $(if $(UPGRADE),--upgrade) --extra dev --strip-extras --no-header --no-annotate \
	    --no-emit-options --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --constraint .venv/torch.txt --output-file requirements.lock pyproject.toml
	sed -i -E -e '1i # The versions Callsheet is tested with, on Python 3.11 and later. Written by `make lock`.' \
	    -e '/^(#|$$|callsheet |cuda|nvidia|triton)/d' -e 's/\+[a-z0-9.]+$$//' requirements.lock

setup: $(SETUP)

$(SETUP) $(DEMO_SETUP): pyproject.toml requirements.lock scripts/set_up.py
	@command -v $(PYTHON) >/dev/null || { echo 'There is no $(PYTHON); Callsheet needs Python 3.11 or later.' >&2; exit 1; }
	$(PYTHON) scripts/set_up.py $(if $(filter $(DEMO_SETUP),$@),local)
	touch $(if $(filter $(DEMO_SETUP),$@),$@,$(SETUP) $(DEMO_SETUP))

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find protos common scheduler managers clients deploy benchmarks cli tests scripts -name __pycache__ -prune -exec rm -rf {} +
