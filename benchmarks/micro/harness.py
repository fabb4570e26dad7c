"""Compile a few kernels and time them against the FMA peak of this core, measured in the same run.

Kernels and the peak loop run interleaved; each time is the minimum over the rounds, because other
processes only ever add time. `cold` evicts the given ranges (weights) from all caches before each
call.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "src/fissile/targets/cpu/runtime"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fPIC",
    "-shared",
    "-Wno-psabi",
]
MACHINES = {
    "native": ["-march=native"],
    "narrow": ["-march=native", "-DFISSILE_NARROW"],
    "avx2": ["-march=native", "-mno-avx512f", "-mavx2", "-mfma"],
}

TIMER = r"""#include <time.h>
#include "contract.h"
namespace fissile {
static double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}
// n rounds of 12 independent chains of fma
extern "C" double peak(int64_t n) {
  vf c[12], a = splat(1.0f), b = splat(0.0f);
  asm volatile("" : "+x"(a), "+x"(b));  // unknown to the compiler
  for (int i = 0; i < 12; i++) c[i] = b + float(i);
  double t = now_us();
  for (int64_t k = 0; k < n; k++)
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++) c[i] = native_fma(c[i], a, b);
  vf sum = b;
  for (int i = 0; i < 12; i++) sum += c[i];
  asm volatile("" : "+x"(sum));
  return now_us() - t;
}
extern "C" int lanes() { return VL; }
typedef void (*kernel)(const float* x, const float* w, float* y);
extern "C" double time_us(kernel f, const float* x, const float* w, float* y, int64_t reps,
                          const char* cold, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_ia32_clflush(cold + i);
  __builtin_ia32_mfence();
  double t = now_us();
  for (int64_t i = 0; i < reps; i++) f(x, w, y);
  return (now_us() - t) / reps;
}
}
"""


def compile_cpp(source: str, machine: str = "native") -> ctypes.CDLL:
    """The library of `source`; kept by content in the temporary folder."""
    flags = FLAGS + MACHINES[machine]
    headers = b"".join(p.read_bytes() for p in sorted(RUNTIME.glob("*.h")))
    key = hashlib.sha256(repr((source, flags)).encode() + headers).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / "fissile-micro"
    folder.mkdir(exist_ok=True)
    library = folder / f"{key}.so"
    if not library.exists():
        cpp = folder / f"{key}.cpp"
        cpp.write_text(source)
        compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
        command = [compiler, *flags, f"-I{RUNTIME}", "-o", f"{library}.tmp{os.getpid()}", str(cpp)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(command)}\n{done.stderr[:2000]}")
        os.replace(f"{library}.tmp{os.getpid()}", library)
    return ctypes.CDLL(str(library))


CHUNK = 64 << 20
_left: list[np.ndarray] = [np.empty(0, np.float32)]


def aligned(n: int, seed: int = 0) -> np.ndarray:
    """n random floats on a 64-byte line, with one spare vector after them, in huge pages where the
    system has them, as the memory of an artifact is."""
    size = -(-(n + 32) // 16) * 16
    if _left[0].size < size:
        part = mmap.mmap(-1, max(CHUNK, -(-size * 4 // CHUNK) * CHUNK) + (2 << 20))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            part.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(part, np.float32)
        _left[0] = whole[-whole.ctypes.data % (2 << 20) // 4 :]
    found, _left[0] = _left[0][: n + 16], _left[0][size:]
    found[:n] = np.random.default_rng(seed).standard_normal(n, dtype=np.float32)
    return found


def measure(
    lib,
    jobs: list[tuple[str, np.ndarray, np.ndarray, np.ndarray, float]],
    cold: bool = False,
    rounds: int = 15,
):
    """jobs: (kernel name, x, w, y, flops). Returns {name: (us, fraction of peak)} and the peak in
    GFLOP/s."""
    lib.peak.restype = lib.time_us.restype = ctypes.c_double
    peak_n = 20_000
    peak_flops = 2.0 * 12 * lib.lanes() * peak_n
    peak_us, best = float("inf"), {}
    reps = {}

    def call(job, times: int) -> float:
        name, x, w, y, _ = job
        pointers = [ctypes.c_void_p(v.ctypes.data) for v in (x, w, y)]
        evicted = [pointers[1], ctypes.c_int64(w.nbytes if cold else 0)]
        return lib.time_us(getattr(lib, name), *pointers, ctypes.c_int64(times), *evicted)

    for job in jobs:
        once = min(call(job, 1) for _ in range(2))
        reps[job[0]] = 1 if cold else max(2, int(1000 / once))
    for _ in range(rounds):
        for job in jobs:
            peak_us = min(peak_us, lib.peak(ctypes.c_int64(peak_n)))
            best[job[0]] = min(best.get(job[0], float("inf")), call(job, reps[job[0]]))
    peak = peak_flops / peak_us
    return {name: (best[name], flops / best[name] / peak) for name, *_, flops in jobs}, peak / 1e3
