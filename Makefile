# make lab    opens JupyterLab on the lessons          make test    runs the test suite; make test ROOM=compression one room's
# make test-all runs the tests that make test leaves to the night, too
# make course makes the instructors' environment, for python -m dgc_lab_grading; make hub makes JupyterHub's
# make wheelhouse gathers what make lab needs, for rooms without a network: make lab takes it from there
# make coverage and make mutants measure the tests themselves: CONTRIBUTING.md
# make test-colab runs the lessons with what Google Colab has, and their widgets in the classic notebook front end
# All make .venv first, with everything pinned and Horovod built for the TensorFlow in it; later calls skip that.

VENV := .venv
BIN := $(VENV)/bin
# Instructors have nbgrader, students must not: it would change their JupyterLab. Its environment reads .venv's packages
# through a .pth file, so that only what nbgrader needs on top is installed (six packages, 82 MB, seconds).
COURSE := .venv-course
# cosmic-ray's, in the same way.
MUTANTS := .venv-mutants
# JupyterHub's, of which students are given their servers: what students need, and no test tools. Its proxy is npm's.
HUB := .venv-hub
PROXY := 5.3.0
# 1 where there is an NVIDIA GPU: TensorFlow then comes with CUDA (5 GB more). make lab GPU=1 and GPU=0 overrule, and
# what $(VENV) has stays until then.
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
# Where wheelhouse/ is, students' and instructors' packages come from there, the wheel of Horovod too, and no network is
# asked. Other environments need what is not in it.
WHEELS := wheelhouse
ifneq ($(wildcard $(WHEELS)),)
NOTHING :=
$(INSTALLED) $(COURSE)/.installed: export PIP_NO_INDEX := 1
# A space ends an address for pip.
$(INSTALLED) $(COURSE)/.installed: export PIP_FIND_LINKS := file://$(subst $(NOTHING) ,%20,$(CURDIR))/$(WHEELS)
export DGC_LAB_CACHE := $(CURDIR)/$(WHEELS)/built
endif
# The first Python from 3.11 to 3.13 that is here; or: make lab PYTHON=/path/to/python
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
	if $$python -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; \
	then echo $$python; break; fi; done)
# What Colab has, from colab/. Its Python is 3.13: the first that is here; or: make test-colab PYTHON_COLAB=/path/to/python
COLAB := .venv-colab
PYTHON_COLAB ?= $(shell for python in python3.13 python3 $(wildcard $(HOME)/.pyenv/versions/3.13.*/bin/python3.13); do \
	if $$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; then echo $$python; break; fi; done)
ROOT_FLAG := $(shell [ "$$(id -u)" = 0 ] && echo --allow-root)

.PHONY: lab course hub wheelhouse test test-all test-colab coverage mutants lint notebooks exercises docs site bench \
	bench-gpu release requirements clean

# Another user of this machine could read what a kernel prints: its ports are encrypted, with a key that is its owner's.
lab: $(VENV)/.horovod $(VENV)/.native
	$(BIN)/jupyter lab $(ROOT_FLAG) --ServerApp.ip=127.0.0.1 --KernelManager.transport_encryption=auto notebooks

course: $(COURSE)/.installed

hub: $(HUB)/.installed

# For this system and this Python: make it on a machine like those in the room.
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

# Two parts, the second even if the first fails: all tests but those marked "alone", $(WORKERS) at a time, each file's in
# one process; then those, one by one. Tests marked "nightly" are left to test-all, which runs everything.
# With ROOM=compression only what is in tests/compression and dgc_lab/compression; with PART=alone or PART=together only
# that part. A part may then have no tests (pytest's status 5).
WORKERS ?= 2
PART ?= together alone
ROOM_TESTS = $(if $(ROOM),$(wildcard tests/$(ROOM) dgc_lab/$(ROOM) dgc_lab_$(ROOM)))
FINE = $(if $(ROOM),0|5,0)
test coverage: TIER = and not nightly
test test-all: $(VENV)/.horovod $(VENV)/.native $(COURSE)/.installed lint
	@[ -z "$(ROOM)" ] || [ -n "$(ROOM_TESTS)" ] || { echo "No room $(ROOM): see ls dgc_lab tests"; exit 1; }; \
	trap 'exit 130' INT; failed=0; \
	part() { $(BIN)/python -m pytest "$$@" $(ROOM_TESTS); case $$? in $(FINE)) ;; *) failed=1 ;; esac; }; \
	for each in $(PART); do case $$each in \
	together) part -m "not alone $(TIER)" --numprocesses=$(WORKERS) --dist=loadfile --no-loadscope-reorder ;; \
	alone) part -m "alone $(TIER)" ;; esac; done; \
	exit $$failed

# The setup cells first: they install the lab itself, so that the lessons then run with what they have installed.
test-colab: $(COLAB)/.installed
	env -u PYTHONPATH COLAB_RELEASE_TAG=release-colab_test $(COLAB)/bin/python -m pytest -n 0 \
		colab/test_setup_cells.py colab/test_classic.py notebooks

# Which lines and branches make test runs, in all of its processes; but what was killed saved nothing.
coverage: $(VENV)/.horovod $(VENV)/.native $(COURSE)/.installed
	$(BIN)/coverage erase
	-$(BIN)/coverage run -m pytest -m "not alone $(TIER)" $(ROOM_TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report --skip-covered

# Small faults put into dgc_lab/compression by cosmic-ray: do the tests notice? It takes days; ends and goes on at will.
mutants: $(MUTANTS)/.installed $(VENV)/.native
	mkdir -p build
	[ -e build/mutants.sqlite ] || $(MUTANTS)/bin/cosmic-ray init tools/cosmic-ray.toml build/mutants.sqlite
	$(MUTANTS)/bin/cosmic-ray exec tools/cosmic-ray.toml build/mutants.sqlite
	$(MUTANTS)/bin/cr-report build/mutants.sqlite

# Without ruff's cache: how an import is sorted depends on which files there are, and the cache does not know those.
lint: $(INSTALLED)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .

# Run every lesson from its text pair and store its output; then use each widget in a browser and store its picture.
# NAMES="04_dgc_masking" for some lessons alone.
notebooks: $(VENV)/.horovod $(VENV)/.native
	$(BIN)/python tools/store_lessons.py $(NAMES)
	PYTHONPATH=tests $(BIN)/python tools/picture_widgets.py $(NAMES)

# Make the students' versions of the exercises from their sources.
exercises: $(COURSE)/.installed
	$(COURSE)/bin/python -m dgc_lab_grading release

# docs/library.md and docs/schemes.md, from the library's docstrings, docs/keras.md, from training with every feature of
# Keras, docs/published_tables.md, from the rows in results/, and the README's picture of them.
docs: $(INSTALLED)
	$(BIN)/python tools/write_library_page.py
	$(BIN)/python tools/write_keras_page.py
	$(BIN)/python tools/write_schemes_page.py
	$(BIN)/python tools/write_tables_page.py
	$(BIN)/python tools/draw_published.py

# A site of the lessons and of all that is written beside them: site/index.html. A link that leads nowhere is an error.
site: $(INSTALLED)
	$(BIN)/python -m sphinx -c docs --builder html --fail-on-warning --keep-going --quiet . site

# Measure everything anew; benchmarks/README.md then shows it.
bench: $(VENV)/.horovod $(VENV)/.native
	for file in $(filter-out %/bench_gpu.py,$(wildcard benchmarks/bench_*.py)); do $(BIN)/python $$file || exit 1; done
	$(BIN)/python benchmarks/write_page.py

# The same on a GPU beside the CPU, in under eight minutes.
bench-gpu: $(INSTALLED) $(VENV)/.native
	$(BIN)/python benchmarks/bench_gpu.py
	$(BIN)/python benchmarks/write_page.py

# All that a release needs, but for publishing it: a clean tree, every check, and packages that install and work.
release: $(VENV)/.horovod
	$(BIN)/python tools/release.py check
	$(MAKE) test-all
	$(MAKE) site
	$(MAKE) test-colab
	$(BIN)/python tools/release.py build

$(VENV)/.horovod: $(INSTALLED) dgc_lab/install/build_horovod.py dgc_lab/install/horovod_source.py
	$(BIN)/python -m dgc_lab build-horovod
	touch $@

# Kept outside of .venv, and compiled at first need where it is not there; a compiler is needed, or it is left out.
$(VENV)/.native: $(INSTALLED) dgc_lab/compression/native.cc
	$(BIN)/python -m dgc_lab build-native || true
	touch $@

# TensorFlow with CUDA and the one without lie in the same folder: the one goes before the other comes.
$(INSTALLED): requirements.txt requirements-gpu.txt pyproject.toml binder/overrides.json
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11, 3.12 or 3.13 found. Install one, or say: make PYTHON=/path/to/python"; exit 1; }
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	sed 's/^tensorflow-cpu==/tensorflow[and-cuda]==/' requirements.txt > $(VENV)/requirements.txt
	if ls $(VENV)/.installed* 2>/dev/null | grep -qv '^$(INSTALLED)$$'; then rm $(VENV)/.installed*; \
		$(BIN)/python -m pip uninstall -qq --yes tensorflow-cpu $(shell sed -n 's/==.*//p' requirements-gpu.txt); fi
	$(BIN)/python -m pip install --quiet --no-compile --requirement $(PINS)
	-$(BIN)/python -m compileall -qq --workers 0 $(VENV)/lib  # pip would do so on one core
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
	@[ -n "$(PYTHON_COLAB)" ] || { echo "No Python 3.13 found, which Colab has. Install it (Debian, Ubuntu: apt-get" \
		"install python3.13-venv; pyenv install 3.13), or say: make test-colab PYTHON_COLAB=/path/to/python3.13"; exit 1; }
	[ -x $(COLAB)/bin/python ] || $(PYTHON_COLAB) -m venv $(COLAB)
	$(COLAB)/bin/python -m pip install --quiet --requirement colab/requirements.txt
	touch $@

# What packages need that requirements.txt has not, pinned so that it fits.
on_top = { echo "\# What is needed on top of requirements.txt for $(1); made by: make requirements"; \
	printf '%s\n' $(foreach package,$(1),'$(package)') | uv pip compile --quiet --universal --python-version 3.11 \
		--no-annotate --no-header --upgrade --constraint requirements.txt - \
	| awk 'NR == FNR { have[$$$$1]; next } !($$$$1 in have)' requirements.txt -; }
# Pin the newest versions that fit together on Python 3.11 to 3.13 (needs uv).
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
