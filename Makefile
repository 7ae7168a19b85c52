# make lab          open JupyterLab on the lessons
# make test         run the tests; make test ROOM=compression runs those of one subpackage
# make test-all     run all tests, including those that only run at night
# make course       create the instructors' environment for python -m dgc_lab_grading
# make hub          create JupyterHub's environment
# make wheelhouse   download the packages of make lab for classrooms without internet access; make lab then uses them
# make coverage, make mutants   measure the quality of the tests, see CONTRIBUTING.md
# make slides       build ten slides for each lesson, for a browser without a network
# make test-colab   run the lessons with Google Colab's packages, and their widgets in the classic notebook front end
# Most of them first create .venv with pinned packages, and those that need Horovod build it; later calls skip this.
# make hub and make test-colab have their own environments.

VENV := .venv
BIN := $(VENV)/bin
# Instructors need nbgrader, but students must not have it: it would change their JupyterLab. Its environment uses
# .venv's packages through a .pth file, so only nbgrader's additional packages are installed (four, in seconds).
COURSE := .venv-course
# cosmic-ray's environment, built in the same way
MUTANTS := .venv-mutants
# JupyterHub's environment, in which students' servers run: their packages, without test tools. Its proxy is from npm.
HUB := .venv-hub
PROXY := 5.3.0
# 1 if there is an NVIDIA GPU: TensorFlow is then installed with CUDA (5 GB more). make lab GPU=1 or GPU=0 overrides
# this. An existing $(VENV) keeps its variant until then.
ifeq ($(GPU),)
GPU := $(shell if [ -e $(VENV)/.installed-gpu ]; then echo 1; elif [ -e $(VENV)/.installed ]; then echo 0; \
	elif [ "$$(uname -sm)" = "Linux x86_64" ] && nvidia-smi -L 2>/dev/null | grep -q "^GPU"; then echo 1; else echo 0; fi)
endif
ifeq ($(GPU),1)
INSTALLED := $(VENV)/.installed-gpu
PINS := $(VENV)/requirements.txt --constraint requirements-gpu.txt
else ifeq ($(GPU),0)
INSTALLED := $(VENV)/.installed
PINS := requirements.txt
else
$(error GPU must be 0 or 1, got $(GPU))
endif
# If wheelhouse/ exists, students' and instructors' packages and the wheel of Horovod are installed from it, without
# network access. Other environments need packages that are not in it.
WHEELS := wheelhouse
ifneq ($(wildcard $(WHEELS)),)
NOTHING :=
$(INSTALLED) $(COURSE)/.installed: export PIP_NO_INDEX := 1
# pip splits addresses at spaces.
$(INSTALLED) $(COURSE)/.installed: export PIP_FIND_LINKS := file://$(subst $(NOTHING) ,%20,$(CURDIR))/$(WHEELS)
export DGC_LAB_CACHE := $(CURDIR)/$(WHEELS)/built
endif
# The first Python from 3.11 to 3.13 on this machine; to choose another: make lab PYTHON=/path/to/python
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	then echo $$python; break; fi; done)
# Colab's packages, from colab/, with the first Python 3.13 here; to choose another: make test-colab PYTHON_COLAB=/path
COLAB := .venv-colab
PYTHON_COLAB ?= $(shell for python in python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3.13); do \
	if $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then echo $$python; break; fi; done)
ROOT_FLAG := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

# Settings of pip, common on clusters, that would make it install into other folders than these environments.
export PIP_USER := 0
export PIP_TARGET :=
export PIP_PREFIX :=
export PIP_ROOT :=

.PHONY: lab course hub wheelhouse test test-all test-colab coverage mutants lint notebooks exercises docs site slides \
	bench bench-gpu release requirements clean

# Kernel ports are encrypted with a key that only their owner can read, so other users of this machine see no output.
# Without jupytext, which would not open a notebook that is newer than its text, for example after an edit in VS Code.
lab: $(VENV)/.horovod $(VENV)/.native
	$(BIN)/jupyter lab $(ROOT_FLAG) --ServerApp.ip=127.0.0.1 --KernelManager.transport_encryption=auto \
		--ServerApp.jpserver_extensions="{'jupyterlab_jupytext': False}" notebooks

course: $(COURSE)/.installed

hub: $(HUB)/.installed

# The wheels are for this system and Python: run this on a machine like those in the classroom.
wheelhouse: $(VENV)/.horovod
	rm -rf $(WHEELS).new
	mkdir -p $(WHEELS).new/built/horovod
	$(BIN)/python -m pip wheel --quiet --wheel-dir $(WHEELS).new --requirement $(PINS)
	$(BIN)/python -m pip wheel --quiet --wheel-dir $(WHEELS).new --no-deps \
		--requirement requirements-course.txt
	cp -r "$$($(BIN)/python -c 'from dgc_lab.install.build_horovod import wheel_folder; print(wheel_folder())')" \
		$(WHEELS).new/built/horovod/
	rm -rf $(WHEELS)
	mv $(WHEELS).new $(WHEELS)

# Tests run in two parts, the second even if the first fails: all tests except those marked "alone", in $(WORKERS)
# processes with one process per file; then those marked "alone", one by one. Only test-all runs tests marked "nightly".
# ROOM=compression restricts them to tests/compression and dgc_lab/compression, PART=alone or PART=together to one part.
# A part may then have no tests (pytest's exit status 5).
WORKERS ?= 2
PART ?= together alone
ROOM_TESTS = $(if $(ROOM),$(wildcard tests/$(ROOM) dgc_lab/$(ROOM) dgc_lab_$(ROOM)))
FINE = $(if $(ROOM),0|5,0)
test coverage: TIER = and not nightly
test test-all: $(VENV)/.horovod $(VENV)/.native $(COURSE)/.installed lint
	@[ -z "$(ROOM)" ] || [ -n "$(ROOM_TESTS)" ] || { echo "No subpackage $(ROOM): see ls dgc_lab tests"; exit 1; }; \
	trap 'exit 130' INT; failed=0; \
	part() { $(BIN)/python -m pytest "$$@" $(ROOM_TESTS); case $$? in $(FINE)) ;; *) failed=1 ;; esac; }; \
	for each in $(PART); do case $$each in \
	together) part -m "not alone $(TIER)" --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder ;; \
	alone) part -m "alone $(TIER)" ;; esac; done; \
	exit $$failed

# The setup cells run first, because they install the lab that the lessons then use.
test-colab: $(COLAB)/.installed
	env -u PYTHONPATH COLAB_RELEASE_TAG=release-colab_test $(COLAB)/bin/python -m pytest -n 0 \
		colab/test_setup_cells.py colab/test_classic.py notebooks

# Report the lines and branches that the parallel part of make test runs, in all processes except killed ones, which
# save no data.
coverage: $(VENV)/.horovod $(VENV)/.native $(COURSE)/.installed
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -m "not alone $(TIER)" $(ROOM_TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# Mutation tests of dgc_lab/compression with cosmic-ray. They take days, and can be stopped and resumed at any time.
mutants: $(MUTANTS)/.installed $(VENV)/.native
	mkdir -p build
	[ -e build/mutants.sqlite ] || $(MUTANTS)/bin/cosmic-ray init tools/cosmic-ray.toml build/mutants.sqlite
	$(MUTANTS)/bin/cosmic-ray exec tools/cosmic-ray.toml build/mutants.sqlite
	$(MUTANTS)/bin/cr-report build/mutants.sqlite

# Without ruff's cache: the sorting of imports depends on which files exist, and the cache ignores that.
lint: $(INSTALLED)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .
	$(BIN)/python tools/check_prose.py

# Run every lesson from its text pair and store its output; then run each widget in a browser and store a picture of it.
# NAMES="04_dgc_masking" restricts this to some lessons.
notebooks: $(VENV)/.horovod $(VENV)/.native
	$(BIN)/python tools/store_lessons.py $(NAMES)
	PYTHONPATH=tests $(BIN)/python tools/picture_widgets.py $(NAMES)

# Generate the students' versions of the exercises from their sources.
exercises: $(COURSE)/.installed
	$(COURSE)/bin/python -m dgc_lab_grading release

# Generate docs/library.md and docs/schemes.md from the library's docstrings, docs/keras.md by training with every
# feature of Keras, docs/published_tables.md from the rows in results/, and the README's figure of those rows.
docs: $(INSTALLED)
	$(BIN)/python tools/write_library_page.py
	$(BIN)/python tools/write_keras_page.py
	$(BIN)/python tools/write_schemes_page.py
	$(BIN)/python tools/write_tables_page.py
	$(BIN)/python tools/draw_published.py

# Build a site from the lessons and other pages: site/index.html. Broken links are errors.
site: $(INSTALLED)
	$(BIN)/python -m sphinx -c docs --builder html --fail-on-warning --keep-going --quiet . site

# Build ten slides for each lesson from its stored output: build/slides/index.html. make site contains them, too.
slides: $(INSTALLED)
	$(BIN)/python tools/build_slides.py

# Repeat all measurements and update benchmarks/README.md.
bench: $(VENV)/.horovod $(VENV)/.native
	for file in $(filter-out %/bench_gpu.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$file || exit 1; done
	$(BIN)/python benchmarks/write_page.py

# Compare a GPU with the CPU, in under eight minutes.
bench-gpu: $(INSTALLED) $(VENV)/.native
	$(BIN)/python benchmarks/bench_gpu.py
	$(BIN)/python benchmarks/write_page.py

# Prepare a release without publishing it: require a clean tree, run all checks, and build and test the packages.
release: $(VENV)/.horovod
	$(BIN)/python tools/release.py check
	$(MAKE) test-all
	$(MAKE) site
	$(MAKE) test-colab
	$(BIN)/python tools/release.py build

$(VENV)/.horovod: $(INSTALLED) dgc_lab/install/build_horovod.py dgc_lab/install/horovod_source.py
	$(BIN)/python -m dgc_lab build-horovod
	touch $@

# The native step is cached outside of .venv, and compiled at its first use if missing; without a compiler, it is skipped.
$(VENV)/.native: $(INSTALLED) dgc_lab/compression/native.cc
	$(BIN)/python -m dgc_lab build-native || true
	touch $@

# TensorFlow with and without CUDA use the same folder: uninstall one before installing the other.
$(INSTALLED): requirements.txt requirements-gpu.txt pyproject.toml binder/overrides.json
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11, 3.12 or 3.13 found. Install one, or run: make PYTHON=/path/to/python"; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	sed 's/^tensorflow-cpu==/tensorflow[and-cuda]==/' requirements.txt > $(VENV)/requirements.txt
	if ls $(VENV)/.installed* 2>/dev/null | grep -qv '^$(INSTALLED)$$'; then rm $(VENV)/.installed*; \
		$(BIN)/python -m pip uninstall -qq --yes tensorflow-cpu $(shell sed -n 's/==.*//p' requirements-gpu.txt); fi
	$(BIN)/python -m pip install --quiet --no-compile --requirement $(PINS)
	-$(BIN)/python -m compileall -qq --workers 0 $(VENV)/lib  # pip would use only one core
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	mkdir -p $(VENV)/share/jupyter/lab/settings
	cp binder/overrides.json $(VENV)/share/jupyter/lab/settings/overrides.json
	touch $@

$(COURSE)/.installed: requirements-course.txt
$(MUTANTS)/.installed: requirements-mutants.txt
$(COURSE)/.installed $(MUTANTS)/.installed: $(INSTALLED)
	[ -x $(@D)/bin/python ] || $(BIN)/python -m venv --without-pip $(@D)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> "$$($(@D)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lab.pth"
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --no-deps --requirement requirements-$(subst .venv-,,$(@D)).txt
	touch $@

$(HUB)/.installed: requirements.txt binder/requirements.txt requirements-hub.txt pyproject.toml binder/overrides.json
	[ -x $(HUB)/bin/python ] || $(PYTHON) -m venv $(HUB)
	$(HUB)/bin/python -m pip install --quiet --requirement binder/requirements.txt --requirement requirements-hub.txt
	$(HUB)/bin/python -m pip install --quiet --no-deps --no-build-isolation .
	mkdir -p $(HUB)/share/jupyter/lab/settings
	cp binder/overrides.json $(HUB)/share/jupyter/lab/settings/overrides.json
	$(HUB)/bin/python -m dgc_lab build-horovod
	npm install --silent --prefix $(HUB) configurable-http-proxy@$(PROXY)
	touch $@

$(COLAB)/.installed: colab/requirements.txt
	@[ -n "$(PYTHON_COLAB)" ] || { echo "No Python 3.13 found, Colab's version. Install it (Debian, Ubuntu: apt-get" \
		"install python3.13-venv; pyenv install 3.13), or run: make test-colab PYTHON_COLAB=/path/to/python3.13"; exit 1; }
	[ -x $(COLAB)/bin/python ] || $(PYTHON_COLAB) -m venv $(COLAB)
	$(COLAB)/bin/python -m pip install --quiet --requirement colab/requirements.txt
	touch $@

# Pin the packages that some packages need in addition to requirements.txt, at compatible versions.
on_top = { echo "\# Packages needed in addition to requirements.txt for $(1); generated by: make requirements"; \
	printf '%s\n' $(foreach package,$(1),'$(package)') | uv pip compile --quiet --universal --python-version 3.11 \
		--no-annotate --no-header --upgrade --constraint requirements.txt - \
	| awk 'NR == FNR { have[$$$$1]; next } !($$$$1 in have)' requirements.txt -; }
# Pin the newest compatible versions for Python 3.11 to 3.13 (needs uv).
requirements:
	uv pip compile --quiet --universal --python-version 3.11 --no-annotate --upgrade \
		--custom-compile-command "make requirements" requirements.in --output-file requirements.txt
	$(call on_top,nbgrader>=0.9.6) > requirements-course.txt
	$(call on_top,cosmic-ray>=8.7) > requirements-mutants.txt
	$(call on_top,tensorflow[and-cuda]) > requirements-gpu.txt
	$(call on_top,jupyterhub>=5.2 nbgitpuller>=1.2) > requirements-hub.txt
	uv pip compile --quiet --universal --python-version 3.13 --no-annotate --upgrade \
		--custom-compile-command "make requirements" colab/requirements.in --output-file colab/requirements.txt

clean:
	rm -rf $(VENV) $(COURSE) $(MUTANTS) $(HUB) $(COLAB) build dist artefacts site
