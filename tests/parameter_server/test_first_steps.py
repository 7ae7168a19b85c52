"""How a training begins: each worker's first step, and what TensorFlow 2.21 does where two of them meet."""

import subprocess

import pytest

from dgc_lab.cluster import ParameterServers
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.schedule import GradientEvent, Schedule
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import train
from dgc_lab.workloads import digits_cnn

pytestmark = pytest.mark.nightly

# Comes before TensorFlow's own constructor, which `EagerClusterFunctionLibraryRuntime::Run` calls when it holds a
# pointer into its vector of functions, and no lock. No program without a race minds that a thread pauses there.
PAUSE = """
#include <dlfcn.h>
#include <unistd.h>
#define NAMED(kind) _ZN10tensorflow5eager27RunComponentFunctionRequest##kind##EPN6google8protobuf5ArenaE
#define TEXT(name) #name
#define NAME_OF(name) TEXT(name)
int paused = 0;
extern "C" void NAMED(C2)(void *request, void *arena) {
  static void *tensorflow = dlopen("libtensorflow_cc.so.2", RTLD_NOLOAD | RTLD_LAZY);
  static auto made = (void (*)(void *, void *))dlsym(tensorflow, NAME_OF(NAMED(C2)));
  __sync_fetch_and_add(&paused, 1);
  usleep(20000);
  made(request, arena);
}
extern "C" void NAMED(C1)(void *request, void *arena) { NAMED(C2)(request, arena); }
"""


@pytest.fixture
def slow_threads(tmp_path, monkeypatch):
    """Clusters started now pause where TensorFlow uses its vector, and memory that was given back is overwritten."""
    library = tmp_path / "pause.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=PAUSE, text=True, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("MALLOC_PERTURB_", "165")


def pauses():
    import ctypes

    return ctypes.c_int.in_dll(ctypes.CDLL(None), "paused").value


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_a_training_begins_where_threads_are_slow(slow_threads, digits, mode):
    """Before workers rehearsed, the coordinator crashed in seven of ten such starts; with no pauses, now and then."""
    config = AsyncConfig(Schedule(mode), gradients=8, batch=32)
    with ParameterServers(2, 1, progress=None) as servers:
        for _ in range(3):
            events = servers.stream(train, Classifier(digits_cnn, digits), config)
            assert len([event for event in events if isinstance(event, GradientEvent)]) == 8
        assert servers.run(pauses) >= 3 * 8
