"""First steps of workers: regression test for a race in TensorFlow 2.21 when two of them overlap."""

import subprocess

import pytest

from dgc_lab.cluster import ParameterServers
from dgc_lab.parameter_server.config import AsyncConfig
from dgc_lab.parameter_server.schedule import GradientEvent, Schedule
from dgc_lab.parameter_server.tasks import Classifier
from dgc_lab.parameter_server.training_loop import train
from dgc_lab.workloads import digits_cnn

pytestmark = pytest.mark.nightly

# Runs before TensorFlow's own constructor, which `EagerClusterFunctionLibraryRuntime::Run` calls while it holds a
# pointer into its vector of functions without a lock. A pause there is harmless in a program without a race.
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
    """Make new clusters pause where TensorFlow uses its vector, and overwrite freed memory."""
    library = tmp_path / "pause.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library), "-ldl"]
    subprocess.run(command, input=PAUSE, text=True, check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("MALLOC_PERTURB_", "165")


def pauses():
    import ctypes

    return ctypes.c_int.in_dll(ctypes.CDLL(None), "paused").value


@pytest.mark.parametrize("mode", ["asynchronous", "synchronous"])
def test_training_starts_even_if_threads_are_slow(slow_threads, digits, mode):
    """Before workers rehearsed, the coordinator crashed in 7 of 10 such starts, and now and then without pauses."""
    config = AsyncConfig(Schedule(mode), gradients=8, batch=32)
    with ParameterServers(2, 1, progress=None) as servers:
        for _ in range(3):
            events = servers.stream(train, Classifier(digits_cnn, digits), config)
            assert len([event for event in events if isinstance(event, GradientEvent)]) == 8
        assert servers.run(pauses) >= 3 * 8
