# minipar: two commands on a bare machine are `make demo` and `make test`.
# Needs git, make and python3 >= 3.11; everything else, MPI included, comes from PyPI into .venv.

PYTHON ?= python3
# Which MPI: "wheel" (default) installs MPICH from PyPI; "system" uses the one you have (a
# cluster's, conda's, Open MPI), with `make demo MPI=system MPIRUN=/path/to/mpirun`.
MPI ?= wheel
VENV ?= .venv
RANKS ?= 4
# Processes for the tests without real ranks, beside the MPI job: as many as there are cores.
WORKERS ?= auto
PY := $(VENV)/bin/python
EXTRAS := $(if $(filter system,$(MPI)),system-mpi,mpi),dev
MPIRUN ?= $(if $(filter system,$(MPI)),mpirun,$(VENV)/bin/mpirun)
READY := $(VENV)/.ready-$(MPI)
XDIST := -n $(WORKERS) --dist worksteal

# Open MPI refuses root and more ranks than cores unless it is told that both are meant.
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export OMPI_MCA_rmaps_base_oversubscribe := 1
export PRTE_MCA_rmaps_default_mapping_policy := :oversubscribe

# Tests and lessons start Python hundreds of times: it may keep what it has compiled.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo test test-all test-mpi test-mpis test-with test-oldest test-peers test-gpu exercises \
  lessons lint bench docs test-site notebooks test-notebooks clean
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(READY)  ## make .venv with minipar and all it needs

$(READY): setup.cfg pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "minipar needs Python >= 3.11, and $(PYTHON) is none: make setup PYTHON=python3.12"; exit 2; }
	@rm -f $(VENV)/.ready-*
	@echo "installing into $(VENV), about a minute"
	@# The pip of $(PYTHON), if it is 22.3 or later, fills the environment without a pip of its own
	@# to begin with: faster, and Debian's python3 may come without ensurepip.  --no-compile: pip
	@# would compile thousands of files that nothing imports.
	@if $(PYTHON) -m pip --python $(PYTHON) --version >/dev/null 2>&1; \
	  then $(PYTHON) -m venv --without-pip $(VENV) && \
	    $(PYTHON) -m pip --python $(PY) install --quiet --no-compile pip --editable '.[$(EXTRAS)]'; \
	  else $(PYTHON) -m venv $(VENV) && \
	    $(PY) -m pip install --quiet --no-compile --editable '.[$(EXTRAS)]'; fi
	@# With an MPI of your own the wheel, if it is there from before, would come first.
	@$(if $(filter system,$(MPI)),$(PYTHON) -m pip --python $(PY) uninstall --quiet --yes mpich;,:)
	@touch $@

demo: $(READY)  ## train a GPT on four MPI ranks, with pictures and a sample
	$(MPIRUN) -n $(RANKS) $(PY) -m minipar train --mesh dp=$(RANKS) --steps 300 --sample 300 \
	  --verify 3 --out out/demo

test: $(READY)  ## the tests: simulated ranks on all cores, and real MPI ranks
	$(PY) -m pytest $(XDIST)

test-all: $(READY)  ## the long sweeps, too
	$(PY) -m pytest $(XDIST) -m "not site and not gpu"

test-mpi: $(READY)  ## only the tests on real MPI ranks
	$(PY) -m pytest -m mpi

test-oldest:  ## all tests with the oldest versions that setup.cfg allows, in .venv-oldest
	@mkdir -p build && $(PYTHON) tests/support/oldest_versions.py > build/oldest.txt
	@PIP_CONSTRAINT=$(CURDIR)/build/oldest.txt $(MAKE) --no-print-directory setup VENV=.venv-oldest
	.venv-oldest/bin/python -m ruff check .
	.venv-oldest/bin/python -m mypy
	.venv-oldest/bin/python -m pytest $(XDIST)

test-mpis:  ## the tests on real ranks with Debian's Open MPI and Debian's MPICH
	@tested=; for mpi in openmpi mpich; do \
	  if command -v mpirun.$$mpi >/dev/null && command -v mpicc.$$mpi >/dev/null; then tested=1; \
	    $(MAKE) --no-print-directory test-with WITH=$$mpi MPI=system VENV=.venv-$$mpi || exit 1; \
	  else echo "$$mpi was not tested, as there is no mpirun.$$mpi or mpicc.$$mpi: on Debian and" \
	    "Ubuntu, apt-get install openmpi-bin libopenmpi-dev mpich libmpich-dev"; fi; \
	done; test $$tested

# mpi4py's wheel loads Open MPI's library; for Debian's MPICH, libmpich.so.12, it has to be built.
test-with: export MPI4PY_LIBMPI := $(if $(filter openmpi,$(WITH)),libmpi.so.40)
test-with: $(READY)
	@printf '#!/bin/sh\nexec mpirun.$(WITH) "$$@"\n' >$(VENV)/bin/mpirun && chmod +x $(VENV)/bin/mpirun
	@$(if $(filter mpich,$(WITH)),test -e $(VENV)/.built || { MPICC=mpicc.mpich $(PYTHON) -m pip \
	  --python $(PY) install --quiet --force-reinstall --no-cache-dir --no-deps --no-binary mpi4py \
	  mpi4py && touch $(VENV)/.built; },:)
	@echo "== $(WITH): $$($(PY) -c 'from mpi4py import MPI; print(MPI.Get_library_version())' | head -1)"
	$(PY) -m pytest -m "mpi and not slow"
	$(PY) -m pytest tests/test_launcher.py tests/commands/test_doctor_ranks.py tests/comm/mpi_ranks/test_guardian.py \
	  tests/testing

test-peers: $(READY)  ## against peers, installed now: PyTorch (a CPU build), transformers, openai …
	$(PY) -m pip install --quiet 'torch==2.13.0' 'openai==3.54.0' 'transformers==5.23.0' \
	  'tokenizers==0.23.3' 'tiktoken==0.14.0' 'safetensors==0.8.0'
	$(PY) -m pytest tests/against_pytorch

test-gpu: $(READY)  ## the tests that need CuPy and a CUDA GPU
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS),cuda]'
	$(PY) -m pytest $(XDIST) -m gpu tests/gpu

exercises: $(READY)  ## prove that the tests of every exercise tell right from wrong
	$(PY) -m minipar exercise prove

lessons: $(READY)  ## run every lesson on four MPI ranks
	@set -e; for lesson in lessons/[0-9]*.py; do echo "== $$lesson"; \
	  $(MPIRUN) -n $(RANKS) $(PY) $$lesson; done

lint: $(READY)  ## style and types
	$(PY) -m ruff check .
	$(PY) -m mypy

bench: $(READY)  ## measure against PyTorch (if installed) and hand-written NumPy
	$(PY) -m tests.bench $(BENCH)

GENERATOR := mkdocs
comma := ,
docs: $(READY)  ## build the site into site/; with WEB=1, lessons and exercises run in it
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS),docs$(if $(filter zensical,$(GENERATOR)),$(comma)zensical)]'
	$(PY) docs/builder/build.py --generator $(GENERATOR) $(if $(WEB),--web)

test-site: docs  ## walk over the site in Chromium: links, keyboard, screen readers, pieces
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS),docs,chromium]'
	$(PY) -m pytest $(XDIST) -m "site and not slow" tests/site

notebooks: $(READY)  ## the lessons as notebooks, in out/notebooks
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS),notebooks]'
	$(PY) docs/builder/notebooks.py

test-notebooks: $(READY)  ## run the magic %%ranks, and the notebooks of all lessons
	$(PY) -m pip install --quiet --editable '.[$(EXTRAS),notebooks]'
	$(PY) -m pytest $(XDIST) -m "not site" tests/school/notebook

clean:  ## remove what the other targets made
	rm -rf $(VENV) .venv-oldest .venv-openmpi .venv-mpich out site build .pytest_cache \
	  .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
