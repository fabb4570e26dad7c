"""The pool runs every tile once, wherever and whenever and from nested calls."""

from __future__ import annotations

import ctypes
import time

import numpy as np
import pytest

BODY = """
struct Job { int32_t* owner; int32_t* count; };
static void mark(void* arg, int64_t begin, int64_t end, int thread) {
  Job* job = static_cast<Job*>(arg);
  for (int64_t t = begin; t < end; t++) { job->owner[t] = thread; job->count[t]++; }
}
extern "C" void* create(int64_t n) { return pool_create(int(n)); }
extern "C" void destroy(pool* p) { pool_destroy(p); }
extern "C" void wake(pool* p) { pool_wake(p); }
extern "C" int64_t threads(pool* p) { return pool_threads(p); }
extern "C" void run(pool* p, int32_t* owner, int32_t* count, int64_t tiles, int64_t times) {
  Job job{owner, count};
  for (int64_t i = 0; i < times; i++) parallel(p, mark, &job, tiles);
}
extern "C" void nested(pool* p, int32_t* count, int64_t tiles) {
  parallel(p, tiles, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; t++)
      parallel(p, 3, [&](int64_t b, int64_t e, int) { count[t] += int32_t(e - b); });
  });
}
extern "C" int64_t aligned_ok() {
  AlignedBuffer a(100), b(1 << 20);
  return uintptr_t(a.data) % 64 == 0 && uintptr_t(b.as<float>()) % 64 == 0;
}
extern "C" int64_t beyond_memory(int64_t less) {
  void* p = aligned_alloc64(SIZE_MAX - size_t(less));
  const bool none = p == nullptr;
  aligned_free64(p);
  return none;
}
"""


@pytest.fixture
def library(compile_cpp):
    return compile_cpp(BODY, "native", "threads.h", "aligned.h", sources=("threads.cpp",))


@pytest.fixture(params=[0, 1, 2, 3, 7])
def pool(library, request):
    p = library("create", request.param, result=ctypes.c_void_p)
    assert library("threads", p, result=ctypes.c_int64) == max(1, request.param)
    yield p
    library("destroy", p)


@pytest.mark.parametrize("tiles", [0, 1, 2, 5, 64, 1000])
def test_every_tile_runs_once(library, pool, tiles):
    threads = library("threads", pool, result=ctypes.c_int64)
    owner, count = np.full(tiles, -1, np.int32), np.zeros(tiles, np.int32)
    library("run", pool, owner, count, tiles, 200)
    assert np.all(count == 200)
    assert np.all((owner >= 0) & (owner < threads))


def test_late_threads_delay_nothing(library):
    """More threads than processors, calls of very few tiles, pauses in which all fall asleep."""
    pool = library("create", 16, result=ctypes.c_void_p)
    for tiles in (2, 3, 17):
        owner, count = np.full(tiles, -1, np.int32), np.zeros(tiles, np.int32)
        for _ in range(20):
            library("run", pool, owner, count, tiles, 50)
            time.sleep(0.001)
            library("wake", pool)
        assert np.all(count == 1000)
    library("destroy", pool)


def test_nested_calls_run_in_their_thread(library, pool):
    count = np.zeros(20, np.int32)
    library("nested", pool, count, 20)
    assert np.all(count == 3)


def test_no_pool_runs_in_the_caller(library):
    owner, count = np.full(9, -1, np.int32), np.zeros(9, np.int32)
    library("run", 0, owner, count, 9, 2)
    assert np.all(owner == 0) and np.all(count == 2)


def test_many_pools_start_and_stop(library):
    for _ in range(50):
        library("destroy", library("create", 3, result=ctypes.c_void_p))


def test_alignment(library):
    assert library("aligned_ok", result=ctypes.c_int64) == 1


@pytest.mark.parametrize("less", [0, 1, 63, 64, 127, 128, (2 << 20) + 63, (2 << 20) + 64, 1 << 30])
def test_more_than_all_memory_is_none(library, less):
    assert library("beyond_memory", less, result=ctypes.c_int64) == 1
