# This Makefile only calls other tools: CMake builds, ctest and pytest run the tests. `make help` prints the following.
#
# To try, to test, and to change:
#   make demo              exchanges arrays with NumPy in both directions, without a copy. RECORD=docs/demo.txt writes
#                          what it prints into the file that docs/start.md shows
#   make test              runs ctest for C and pytest for Python; prints which tests were skipped, and why
#   make dev               builds; afterwards .venv/bin/python can import dlarray, image and samples
#   make format, make lint run clang-format and ruff; lint also checks dlarray.pyi and python/dlpack_py with mypy, and the
#                          files in .github and CITATION.cff with their schemas
#   make docs              builds the site of the documentation into build/docs, without a warning, and checks its links.
#                          Needs Python 3.11 or newer
#   make clean             removes what was built, and .venv
# The suite in other forms:
#   make test-whole        what make test samples, in full: every forced failure (DLPACK_PY_FAULTS=all), every mistake
#                          for the conformance suite (DLPACK_PY_MISTAKES=all), 200 random examples for each test
#                          (DLPACK_PY_EXAMPLES), others in each run
#   make test-plain        with the fast paths turned off (DLPACK_PY_PLAIN)
#   make test-exchange     with dlpack_exchange.h included first in all modules (DLPACK_PY_WITH_EXCHANGE)
#   make test-folders      a process for each folder: faster on a Python without a GIL. FOLDERS names the folders
#   make test-interpreters threads, forks and the end of interpreters; each scenario 10 times (DLPACK_PY_REPEAT)
#   make test-long         each exchange a million times (DLPACK_PY_ROUNDS): memory must not grow, and in a debug build
#                          of Python the number of references must not grow
#   make test-threads      threads: on this Python, without a GIL, and without a GIL under ThreadSanitizer
#   make test-matrix       on each platform and Python that this machine has or can get; writes docs/platforms.md. ROWS
#                          names some rows, such as "3.14 windows"
#   make coverage          lines and branches of the headers that no test runs and tests/proofs/coverage does not explain
#   make mutate            makes 5,300 mistakes in a copy of the headers, or MUTANTS of them, and prints those that no
#                          test notices and tests/proofs/mutants does not explain. MUTANTS=explained: those of
#                          explained.txt, of which no test may notice one
#   make fuzz              fuzzes the headers with clang and libFuzzer: FUZZ_SECONDS (60) for each target, two targets
#                          at a time. FUZZ_TARGETS names some. Keeps an input that crashes, and prints how to run it again
#   make prove             proves with CBMC, within bounds, what tests/proofs says of validation, layout, overlap and the
#                          loops of the copies; gets CBMC on Debian. PROVE=sample: smaller bounds; PROVE=all: larger
#                          ones; PROVE=mutants: mistakes in a copy of the header, whose proof must fail; PROVE=NAME
#   make model             verifies tests/proofs/ownership.pml, who owns a capsule's tensor, with Spin, and that each of
#                          its mistakes is found
# Other systems:
#   make test-windows      the suite on Windows' CPython, with modules built by mingw-w64, under wine; gets that CPython
# Devices:
#   make test-streams      the order of work on simulated devices, also under ThreadSanitizer, ASan and UBSan. Gets
#                          headers of HIP if the machine has none
#   make mutate-streams    makes mistakes in a copy of the headers, and prints the mistakes that no test notices
#   make test-simulated-gpu  the tests of test-gpu on the simulated devices, without a GPU
#   make test-gpu          the order of work on an NVIDIA GPU, with array libraries for GPUs; says why it skips tests.
#                          GPU_PYTHON=python3 uses an interpreter as it is; make gpu-packages gets pytest and dlpack.h
#   make gpu-all           on an NVIDIA GPU, in at most 570 seconds (GPU_SECONDS): these tests, the cost of an order
#                          beside the bare calls, latencies beside those of PyTorch and CuPy, a soak, and mistakes that
#                          the tests must notice. Writes build/gpu-all. SIMULATED=1: a dry run without a GPU
# Other libraries:
#   make test-libraries    exchanges with all array libraries that run on a CPU; writes docs/libraries.md. Runs the
#                          conformance suite on PyTorch and JAX, with the files of conformance/xfails
#   make environments      installs those of them that need an environment each
#   make conformance       runs the conformance suite on all array libraries that run here, some in several versions;
#                          writes conformance/results, docs/conformance.md and build/conformance.html. Installs 10 GB.
#                          LIBRARIES=numpy=.venv names some libraries, each with its environment
#   make conformance-pairs measures what each of these libraries does with the arrays of each other: half an hour. Writes
#                          conformance/pairs.json and the page
# Figures:
#   make size              lines and functions of the headers, what one export and one import travel in them, the size
#                          of the example, the cost of its compilation; fails if a figure is above its must
#   make instructions      counts the instructions of the most common calls with valgrind, with dlpack_exchange.h and
#                          without; fails if a call costs more than 1.05 times its number in benchmarks/record.json, 1.3
#                          times without that header. RECORD=1 writes a record in which no number is larger.
#                          PROFILE="f(numpy)" prints in which functions a call spends its instructions
#   make bench             the same calls by this library, by hand and by other libraries: docs/performance.md and its
#                          chart; about six minutes. DOCS=build writes into another folder
#   make bench-copy        times strided copies beside memcpy, NumPy and PyTorch: docs/copying.md and its chart
#   make bench-threads     how many more exchanges two threads make than one, without a GIL; needs two idle cores
# The package:
#   make package           builds the package dlpack-py, sdist and wheel, into build/release
#   make test-package      builds users' projects with it, by each build tool, and the wheel of the conformance suite; asks
#                          the index of packages
#   make test-packaging    makes packages of it by the recipes of packaging/, with conan and rattler-build
#   make release           checks all that a release needs, builds the package, and builds and tests from its sdist
# PYTHON=python3.12 names the interpreter of .venv. VENV_ARGS is passed to venv, CMAKE_ARGS to CMake, PYTEST_ARGS to
# pytest.

PYTHON ?= python3
VENV ?= .venv
TAG := $(shell $(PYTHON) -c 'import platform, sys; print(sys.implementation.name + "-" + platform.python_version() + sys.abiflags)' 2> /dev/null)
ifeq ($(TAG),)
  $(error MISSING: no Python `$(PYTHON)`: install python3, or name another one, PYTHON=python3.11)
endif
BUILD ?= build/$(TAG)

MODULES := $(abspath $(BUILD))/python
WITH_MODULES := DLPACK_PY_BUILD_DIR=$(MODULES) PYTHONPATH=$(MODULES)
RUN := $(WITH_MODULES) $(VENV)/bin/python
C_FILES = $(wildcard *.h *.hpp benchmarks/*.c conformance/*.c benchmarks/*/*.?pp benchmarks/*/*.h examples/*/*.c examples/*/*.?pp examples/start/*/*.c examples/start/*/*.?pp tests/*/*.c tests/*/*.h tests/*/*.?pp tests/*/*/*.c tests/*/*/*.h tests/*/*/*.cu packaging/*/*/*.c)
HAS_NUMPY = $(VENV)/bin/python -c 'import numpy' 2> /dev/null
SITE_PACKAGES = $$($(VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
export PATH := $(abspath $(VENV))/bin:$(PATH)

# A Python without a GIL must not turn the GIL on when it imports an extension.
ifneq ($(filter %t %td,$(TAG)),)
  export PYTHON_GIL := 0
endif

# One pytest process for each core. One process runs all tests of a file. The crash of a process ends the run and names
# the test: pytest-xdist waits for ever where another process takes over.
PARALLEL := -n auto --dist loadfile --no-loadscope-reorder --max-worker-restart=0

.PHONY: help demo test test-whole test-plain test-exchange test-folders test-libraries environments conformance conformance-pairs test-interpreters \
    test-long test-matrix test-threads fuzz test-windows test-streams mutate-streams mutate coverage prove model test-simulated-gpu test-gpu gpu-all gpu-packages instructions bench bench-copy bench-threads throughput size streams-sanitized test-packaging \
    check configure build dev format lint clean package test-package release docs

demo: configure # the first target: make without a target runs it
	@$(HAS_NUMPY) || { echo "MISSING: the demo needs NumPy, and pip has none for $(TAG)" >&2; exit 1; }
	cmake --build $(BUILD) --target dlarray image
	$(RUN) examples/demo.py $(if $(RECORD),> $(RECORD))

help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

test: dev
	cd $(BUILD) && ctest --output-on-failure
	$(RUN) -m pytest $(PARALLEL) $(PYTEST_ARGS)

FOLDERS ?= $(sort $(dir $(wildcard tests/*/test_*.py)))

# Without a GIL, a garbage collection looks through frozen objects too, and many tests collect: a process that has
# collected the tests of one folder takes a third of the time.
test-folders: dev
	cd $(BUILD) && ctest --output-on-failure
	failed=0; \
	for folder in $(FOLDERS); do \
	    $(RUN) -m pytest $(PYTEST_ARGS) $$folder || failed=1; \
	done; \
	exit $$failed

# The folders whose tests use random examples, or make each call, each allocation or each clause fail.
test-whole: dev
	DLPACK_PY_EXAMPLES=200 DLPACK_PY_FAULTS=all DLPACK_PY_MISTAKES=all \
	    $(RUN) -m pytest $(PARALLEL) tests/conformance tests/consumer tests/examples tests/failures tests/tensor $(PYTEST_ARGS)

# tests/build and tests/fuzz compile the headers themselves. tests/conformance has nothing of the headers.
FORM_ARGS := --ignore=tests/build --ignore=tests/conformance --ignore=tests/fuzz
test-plain: $(VENV)/$(TAG)
	$(MAKE) test BUILD=$(BUILD)/plain CMAKE_ARGS='$(CMAKE_ARGS) -DCMAKE_C_FLAGS=-DDLPACK_PY_PLAIN=1' \
	    PYTEST_ARGS='$(FORM_ARGS) $(PYTEST_ARGS)'

# What dlpack_exchange.h does not change is left out: tests/tensor, and the programs of ctest.
test-exchange: $(VENV)/$(TAG)
	$(MAKE) dev BUILD=$(BUILD)/exchange CMAKE_ARGS='$(CMAKE_ARGS) -DDLPACK_PY_WITH_EXCHANGE=ON'
	DLPACK_PY_BUILD_DIR=$(abspath $(BUILD))/exchange/python PYTHONPATH=$(abspath $(BUILD))/exchange/python \
	    $(VENV)/bin/python -m pytest $(PARALLEL) $(FORM_ARGS) --ignore=tests/tensor $(PYTEST_ARGS)

# The results of threads, forks and the end of interpreters depend on timing: the tests run several times.
test-interpreters: dev
	DLPACK_PY_REPEAT=$${DLPACK_PY_REPEAT:-10} $(RUN) -m pytest $(PARALLEL) tests/lifetime --ignore=tests/lifetime/test_long_runs.py $(PYTEST_ARGS)

test-long: dev
	DLPACK_PY_ROUNDS=$${DLPACK_PY_ROUNDS:-1000000} $(RUN) -m pytest -n auto tests/lifetime/test_long_runs.py \
		tests/lifetime/test_subinterpreters.py::test_what_belongs_to_ended_interpreters_is_not_searched_G1 $(PYTEST_ARGS)

# Builds and runs with the tools of this machine for another system, beside the modules of this one.
test-windows: $(addprefix $(VENV)/$(TAG)-,dev dlpack cmake ninja device)
	$(VENV)/bin/python tests/platforms/windows.py $(PYTEST_ARGS)

prove: $(VENV)/$(TAG)-dlpack
	$(VENV)/bin/python tests/proofs/prove.py $(PROVE)

model:
	$(PYTHON) tests/proofs/model.py

test-threads: dev
	$(RUN) -m pytest tests/lifetime/test_races.py tests/lifetime/test_threads.py $(PYTEST_ARGS)
	$(VENV)/bin/python tests/lifetime/free_threaded.py

test-matrix: dev
	$(VENV)/bin/python tests/build/machine.py fetch
	$(VENV)/bin/python tests/platforms/matrix.py $(ROWS)

FUZZ_SECONDS ?= 60
fuzz: $(addprefix $(VENV)/$(TAG)-,dlpack device)
	$(VENV)/bin/python tests/fuzz/run.py --seconds $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# Gets headers and the library of HIP where the machine has none; without headers of CUDA or HIP its tests fail. Each
# sanitizer has a separate build, whose code test_without_device.py and test_gpu_suite.py do not run. Python itself is
# not built with the sanitizer, and leaks: do not detect leaks here.
test-streams: export DLPACK_PY_COMPLETE := 1
test-streams: $(VENV)/$(TAG)
	$(VENV)/bin/python tests/build/machine.py fetch-hip
	$(MAKE) dev
	cd $(BUILD) && ctest --output-on-failure -R '^streams/'
	$(RUN) -m pytest $(PARALLEL) tests/streams $(PYTEST_ARGS)
	failed=0; \
	for sanitizer in thread address; do \
	    if echo 'int main(void) { return 0; }' | $(CC) -fsanitize=$$sanitizer -x c - -o $(BUILD)/has-$$sanitizer; then \
	        $(MAKE) streams-sanitized SANITIZER=$$sanitizer || failed=1; \
	    else \
	        echo "SKIPPED: $(CC) has no -fsanitize=$$sanitizer"; \
	    fi; \
	done; \
	exit $$failed

SANITIZED = $(BUILD)/$(SANITIZER)
FLAGS_thread = -fsanitize=thread
FLAGS_address = -fsanitize=address,undefined -fno-sanitize-recover=undefined
LIBRARY_thread = libtsan.so
LIBRARY_address = libasan.so
streams-sanitized:
	$(MAKE) configure BUILD=$(SANITIZED) \
	    CMAKE_ARGS='$(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="-O1 $(FLAGS_$(SANITIZER))"'
	cmake --build $(SANITIZED) --target streams
	cd $(SANITIZED) && ctest --output-on-failure -R '^streams/'
	LD_PRELOAD=$$($(CC) -print-file-name=$(LIBRARY_$(SANITIZER))) ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc \
	    DLPACK_PY_BUILD_DIR=$(abspath $(SANITIZED))/python PYTHONPATH=$(abspath $(SANITIZED))/python \
	    $(VENV)/bin/python -m pytest $(PARALLEL) tests/streams --ignore=tests/streams/test_without_device.py \
	    --ignore=tests/streams/test_gpu_suite.py $(PYTEST_ARGS)

# MUTANTS mutants, or all of them. The mutants of make mutate-streams are written by hand.
mutate: dev $(VENV)/$(TAG)-mutate
	$(VENV)/bin/python tests/proofs/mutants/mutate.py $(BUILD)/mutants $(or $(MUTANTS),0) $(HEADER_TESTS) $(PYTEST_ARGS)

# The tests of make mutate, with each call and each allocation that can fail.
coverage: dev
	$(MAKE) build BUILD=$(BUILD)/coverage CMAKE_ARGS='$(CMAKE_ARGS) -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS="$(COVERAGE)" -DCMAKE_CXX_FLAGS="$(COVERAGE)"'
	find $(BUILD)/coverage -name '*.gcda' -delete
	cd $(BUILD)/coverage && ctest --output-on-failure
	DLPACK_PY_FAULTS=all DLPACK_PY_BUILD_DIR=$(abspath $(BUILD))/coverage/python PYTHONPATH=$(abspath $(BUILD))/coverage/python \
	    $(VENV)/bin/python -m pytest $(PARALLEL) $(HEADER_TESTS) $(PYTEST_ARGS)
	$(VENV)/bin/python tests/proofs/coverage/coverage.py $(BUILD)/coverage

COVERAGE := -O0 -g0 --coverage -fprofile-update=atomic
HEADER_TESTS := $(patsubst %,tests/%,tensor producer consumer buffer exchange_api failures examples lifetime streams)

mutate-streams: dev
	$(VENV)/bin/python tests/build/machine.py fetch
	$(VENV)/bin/python tests/streams/mutants.py $(BUILD)/mutants

# The tests of test-gpu on the simulated runtime: their own code is tested, and what they say of the simulation.
SIMULATED_GPU = $(BUILD)/simulated_gpu
test-simulated-gpu: dev
	cmake --build $(BUILD) --target simulated_gpu
	DLPACK_PY_SIMULATED_GPU=1 DLPACK_PY_BUILD_DIR=$(MODULES) PYTHONPATH=$(abspath $(SIMULATED_GPU)):$(MODULES) \
	    $(VENV)/bin/python -m pytest $(GPU_LIMIT) tests/streams/gpu $(PYTEST_ARGS)

# The tests that need nvcc have a separate build. The array libraries must match the CUDA version of the driver; without
# a driver they are not installed. GPU_PYTHON=python3 names an interpreter that is used as it is, without a network:
# dlpack.h and pytest may be in $(GPU_PACKAGES), which make gpu-packages fills on another machine.
GPU = $(BUILD)/gpu
GPU_PACKAGES ?= build/gpu-packages
# A test that hangs in a call of the driver ends the process: no signal ends the call.
GPU_LIMIT = --timeout 120 --timeout-method thread
GPU_HANDSHAKE = $(GPU)/benchmarks/handshake || echo "SKIPPED: benchmarks/handshake.c did not run"
test-gpu: export PATH := $(PATH):$(or $(CUDA_HOME),/usr/local/cuda)/bin
ifdef GPU_PYTHON
test-gpu: export PYTHONPATH := $(abspath $(GPU))/python:$(abspath $(GPU_PACKAGES))
test-gpu:
	cmake -S . -B $(GPU) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$$(command -v $(GPU_PYTHON)) \
	    -DDLPACK_PY_GPU_TESTS=ON $(CMAKE_ARGS)
	cmake --build $(GPU) --target gpu
	failed=0; limit="$(GPU_LIMIT)"; \
	$(GPU_PYTHON) -c 'import pytest_timeout' || { limit=; echo "SKIPPED: a time limit for each test: make gpu-packages"; }; \
	DLPACK_PY_BUILD_DIR=$(abspath $(GPU))/python $(GPU_PYTHON) -m pytest -v $$limit tests/streams/gpu $(PYTEST_ARGS) || failed=1; \
	$(GPU_HANDSHAKE); \
	exit $$failed
else
test-gpu:
	$(MAKE) configure BUILD=$(GPU) CMAKE_ARGS='$(CMAKE_ARGS) -DDLPACK_PY_GPU_TESTS=ON'
	cmake --build $(GPU) --target gpu
	failed=0; python=$(VENV)/bin/python; \
	if cuda=$$($(PYTHON) tests/streams/gpu/driver.py); then \
	    python=$(BUILD)/venv-cuda$$cuda/bin/python; \
	    $(MAKE) $(BUILD)/venv-cuda$$cuda/installed || exit 1; \
	else \
	    echo "SKIPPED: libraries for GPUs are not installed"; \
	fi; \
	DLPACK_PY_BUILD_DIR=$(abspath $(GPU))/python PYTHONPATH=$(abspath $(GPU))/python \
	    $$python -m pytest -v $(GPU_LIMIT) tests/streams/gpu $(PYTEST_ARGS) || failed=1; \
	$(GPU_HANDSHAKE); \
	exit $$failed
endif

# In one command that ends in GPU_SECONDS. GPU_PYTHON names the interpreter. SIMULATED=1: a dry run without a GPU.
GPU_SECONDS ?= 570
GPU_ALL = tests/streams/gpu/all.py --seconds $(GPU_SECONDS) --to build/gpu-all
ifdef SIMULATED
gpu-all: $(addprefix $(VENV)/$(TAG)-,dev dlpack cmake ninja device)
	DLPACK_PY_SIMULATED_GPU=1 $(VENV)/bin/python $(GPU_ALL)
else
gpu-all:
	$(or $(GPU_PYTHON),$(PYTHON)) $(GPU_ALL)
endif

gpu-packages: | $(VENV)/$(TAG)
	rm -rf $(GPU_PACKAGES)
	$(PIP_INSTALL) --python-version 3.12 --target $(GPU_PACKAGES) --no-deps -r requirements/dlpack.txt
	$(PIP_INSTALL) --python-version 3.12 --target $(GPU_PACKAGES) $$(grep -oE '^pytest(-timeout)?==[0-9.]+' requirements/dev.txt)

# These libraries get separate environments, because their dependencies conflict with other libraries. All other
# libraries are in $(VENV).
ENVIRONMENTS := tensorflow paddle mlx
environments: $(ENVIRONMENTS:%=$(BUILD)/venv-%/installed)

test-libraries: dev $(VENV)/$(TAG)-libraries environments
	rm -rf $(BUILD)/libraries
	failed=0; \
	for name in $(ENVIRONMENTS); do \
	    $(WITH_MODULES) $(BUILD)/venv-$$name/bin/python -m pytest tests/libraries/test_table.py tests/libraries/test_libraries.py \
	        -k $$name $(PYTEST_ARGS) || failed=1; \
	done; \
	DLPACK_PY_LIBRARIES=1 $(RUN) -m pytest $(PARALLEL) tests/libraries tests/conformance/test_xfails.py $(PYTEST_ARGS) || failed=1; \
	PYTHONPATH=tests $(VENV)/bin/python tests/libraries/table.py $(BUILD)/libraries docs/libraries.md || failed=1; \
	exit $$failed

# The conformance suite tests these libraries too, and older versions of others. Each has an environment of its own.
SUBJECTS := warp drjit kornia pyav cuda-core mxnet ndonnx numpy1.26 numpy2.0 jax0.4 torch2.6

# Each library with the folder of its environment. Two libraries run at a time. Libraries that are not here, as CuPy and
# Numba without a GPU, are named and left out. A result of an earlier run stays if its library has another version.
LIBRARIES := $(foreach name,$(ENVIRONMENTS),$(name)=$(BUILD)/venv-$(name)) \
    $(foreach library,torch jax dlarray by_hand numpy tvm_ffi pyarrow.Tensor pyarrow.Array array_api_strict nanobind pybind11 mpi4py \
        cupy numba,$(library)=$(VENV)) \
    $(foreach pair,warp=warp drjit=drjit kornia_rs=kornia av=pyav cuda.core=cuda-core mxnet=mxnet ndonnx=ndonnx numpy=numpy1.26 \
        numpy=numpy2.0 jax=jax0.4 torch=torch2.6,$(subst =,=$(BUILD)/venv-,$(pair)))
LIBRARY_ENVIRONMENTS = $(filter $(BUILD)/venv-%,$(subst =, ,$(LIBRARIES)))
SUITE := PYTHONPATH=$(MODULES):conformance DLPACK_PY_BUILD_DIR=$(MODULES)
conformance: dev $(VENV)/$(TAG)-libraries $(LIBRARY_ENVIRONMENTS:%=%/installed)
	failed=0; \
	printf '%s\n' $(LIBRARIES) | $(SUITE) xargs -n 1 -P 2 \
	    sh -c '$${0#*=}/bin/python tests/conformance/conform.py $${0%%=*} conformance/results' || failed=1; \
	$(SUITE) $(VENV)/bin/python tests/conformance/document.py conformance/results docs/conformance.md build/conformance.html || failed=1; \
	exit $$failed

# What each library does with the arrays of each other, for the page; half an hour.
conformance-pairs: dev $(VENV)/$(TAG)-libraries $(LIBRARY_ENVIRONMENTS:%=%/installed)
	$(SUITE) $(VENV)/bin/python tests/conformance/measure.py conformance/pairs.json $(LIBRARIES)
	-$(SUITE) $(VENV)/bin/python tests/conformance/document.py conformance/results docs/conformance.md build/conformance.html

instructions: configure
	cmake --build $(BUILD) --target counted
	$(RUN) benchmarks/instructions.py

# DOCS names another folder than docs.
bench: configure $(VENV)/$(TAG)-bench
	cmake --build $(BUILD) --target loop calls by_hand dlarray image
	$(RUN) benchmarks/bench.py $(BUILD) $(or $(DOCS),docs)

# On a free-threaded Python, which build_python.sh builds. make throughput PYTHON=... takes any Python.
bench-threads:
	python=$$(tests/lifetime/build_python.sh free-threaded) && \
	    $(MAKE) throughput PYTHON=$$python VENV=build/venv-python3.13t BUILD=build/free-threaded

throughput: configure
	cmake --build $(BUILD) --target loop calls
	$(RUN) benchmarks/threads.py

bench-copy: configure $(VENV)/$(TAG)-torch
	cmake --build $(BUILD) --target copy_loops copy_fast dlarray
	$(RUN) benchmarks/copying.py build/bench-copy.json docs

size: configure
	$(VENV)/bin/python benchmarks/size.py

package: $(addprefix $(VENV)/$(TAG)-,dev dlpack)
	$(VENV)/bin/python packaging/release.py package

test-package: dev $(VENV)/$(TAG)-package
	DLPACK_PY_COMPLETE=1 $(RUN) -m pytest $(PARALLEL) tests/build/test_package.py tests/build/test_start.py tests/build/test_release.py tests/build/test_conformance_wheel.py $(PYTEST_ARGS)

# conan has dependencies that conflict with other packages.
$(BUILD)/venv-packaging/installed: requirements/packaging.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP) -r $<
	touch $@

test-packaging: dev $(BUILD)/venv-packaging/installed
	DLPACK_PY_PACKAGING=$(abspath $(BUILD))/venv-packaging/bin \
	    $(RUN) -m pytest tests/build/test_packaging.py $(PYTEST_ARGS)

release: $(addprefix $(VENV)/$(TAG)-,dev numpy dlpack cmake ninja)
	$(VENV)/bin/python packaging/release.py release

# Prints in one line what the machine lacks.
check:
	@$(PYTHON) requirements/check.py $(CC)

configure: $(addprefix $(VENV)/$(TAG)-,dev numpy dlpack cmake ninja device)
	cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DPython_EXECUTABLE=$(abspath $(VENV))/bin/python $(CMAKE_ARGS)

build: configure
	cmake --build $(BUILD)

dev: build
	echo $(MODULES) > "$(SITE_PACKAGES)/dlpack_py.pth"

# Sphinx reads all pages again: the pages of sources follow from links. The tests need no module.
docs: $(VENV)/$(TAG)-docs $(VENV)/$(TAG)-dev
	rm -rf build/docs
	$(VENV)/bin/python -m sphinx --quiet --fresh-env --nitpicky --fail-on-warning --keep-going -b html -c docs . build/docs
	DLPACK_PY_SITE=build/docs $(WITH_MODULES) $(VENV)/bin/python -m pytest --quiet tests/build/test_site.py $(PYTEST_ARGS)

format: $(VENV)/$(TAG)-lint
	$(VENV)/bin/clang-format -i $(C_FILES)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

# The schemas are in the package: nothing is downloaded.
SCHEMA = $(VENV)/bin/check-jsonschema --builtin-schema
lint: $(VENV)/$(TAG)-lint $(VENV)/$(TAG)-dev $(VENV)/$(TAG)-numpy
	$(VENV)/bin/clang-format --dry-run -Werror $(C_FILES)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/editorconfig-checker -disable-indentation -disable-max-line-length
	$(SCHEMA) vendor.github-workflows .github/workflows/*.yml examples/template/.github/workflows/*.yml
	$(SCHEMA) vendor.github-issue-forms .github/ISSUE_TEMPLATE/[!c]*.yml
	$(SCHEMA) vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA) vendor.citation-file-format CITATION.cff
	MYPYPATH=examples/ndarray $(VENV)/bin/mypy --strict --cache-dir=$(BUILD)/mypy examples/ndarray/dlarray.pyi tests/examples/typed_use.py
	$(VENV)/bin/mypy --strict --python-version=3.9 --cache-dir=$(BUILD)/mypy python/dlpack_py

clean:
	rm -rf $(VENV) build

# Empty files in $(VENV) record what is installed there. Their names contain the version of $(PYTHON): for another
# version $(VENV) is created again.
$(VENV)/$(TAG): | check
	$(PYTHON) -m venv --clear $(VENV_ARGS) $(VENV)
	touch $@

PIP = -m pip install --quiet --disable-pip-version-check --only-binary=:all:
PIP_INSTALL = $(VENV)/bin/python $(PIP)

# If pip fails, the message has the last line that pip printed; the log file has all lines.
PIP_LOG = $(VENV)/pip.log
PIP_FAILED = { echo "MISSING: pip got nothing for $<, is there a network? $$(tail -n 1 $(PIP_LOG))" >&2; exit 1; }

$(BUILD)/venv-%/installed: requirements/libraries-%.txt
	$(PYTHON) -m venv --clear $(@D)
	$(@D)/bin/python $(PIP) -r $<
	touch $@

$(VENV)/$(TAG)-%: requirements/%.txt | $(VENV)/$(TAG)
	@$(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || $(PIP_FAILED)
	touch $@

# The package that contains dlpack.h has no wheel for some platforms. Install the files of another platform there.
# Nothing may import these files: remove the record that the package is installed, all but its licence.
ANY_PLATFORM := --no-deps --python-version 3.12 --implementation cp --abi cp312 --platform manylinux_2_24_x86_64
$(VENV)/$(TAG)-dlpack: requirements/dlpack.txt | $(VENV)/$(TAG)
	@$(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || \
	    { $(PIP_INSTALL) $(ANY_PLATFORM) --target "$(SITE_PACKAGES)" -r $< > $(PIP_LOG) 2>&1 && \
	    mv "$(SITE_PACKAGES)"/apache_tvm_ffi-*.dist-info/licenses "$(SITE_PACKAGES)/tvm_ffi" && \
	    rm -r "$(SITE_PACKAGES)"/apache_tvm_ffi-*.dist-info; } || $(PIP_FAILED)
	touch $@

# Some platforms have no wheel of NumPy. VENV_ARGS=--system-site-packages uses the NumPy of the system.
$(VENV)/$(TAG)-numpy: requirements/numpy.txt | $(VENV)/$(TAG)
	@$(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || $(HAS_NUMPY) || echo "without $<"
	touch $@

$(VENV)/$(TAG)-libraries: requirements/bench.txt # which libraries.txt includes

# Some platforms have no PyTorch: then its column is empty.
$(VENV)/$(TAG)-torch: requirements/bench.txt | $(VENV)/$(TAG)
	@$(PIP_INSTALL) $$(grep '^torch==' $<) > $(PIP_LOG) 2>&1 || echo "without PyTorch"
	touch $@

# Some platforms have no such packages: then CMake prints which tests it leaves out.
$(VENV)/$(TAG)-device: requirements/device.txt | $(VENV)/$(TAG)
	@$(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || echo "without $<"
	touch $@

# Install CMake and ninja only if the machine has no version that runs and is new enough.
$(VENV)/$(TAG)-cmake: requirements/cmake.txt | $(VENV)/$(TAG)
	@echo 'cmake_minimum_required(VERSION 3.18)' | cmake -P /dev/stdin > $(PIP_LOG) 2>&1 || \
	    $(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || $(PIP_FAILED)
	touch $@

$(VENV)/$(TAG)-ninja: requirements/ninja.txt | $(VENV)/$(TAG)
	@ninja --version > $(PIP_LOG) 2>&1 || $(PIP_INSTALL) -r $< > $(PIP_LOG) 2>&1 || $(PIP_FAILED)
	touch $@
