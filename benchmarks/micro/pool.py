"""What one call of `parallel` costs, back to back and after the workers went to sleep.

python benchmarks/micro/pool.py [--threads 2]
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

from harness import FLAGS, RUNTIME

SOURCE = r""" #include <time.h> #include <unistd.h> #include "threads.h" using namespace fissile;
static double now_us() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e6 +
t.tv_nsec * 1e-3; } static void nothing(void*, int64_t, int64_t, int) {} extern "C" double
cost_us(int64_t threads, int64_t pause_us) {
  pool* p = pool_create(int(threads));
  double least = 1e9;
  for (int i = 0; i < 300; i++) {
    if (pause_us) usleep(unsigned(pause_us));
    double t = now_us();
    parallel(p, nothing, nullptr, threads);
    t = now_us() - t;
    if (t < least) least = t;
  }
  pool_destroy(p);
  return least;
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cpp, library = Path(folder) / "pool.cpp", Path(folder) / "pool.so"
        cpp.write_text(SOURCE)
        sources = [str(cpp), str(RUNTIME / "threads.cpp")]
        command = ["g++", *FLAGS, f"-I{RUNTIME}", "-pthread", "-o", str(library), *sources]
        subprocess.run(command, check=True)
        lib = ctypes.CDLL(str(library))
        lib.cost_us.restype = ctypes.c_double
        for pause in (0, 200):
            cost = lib.cost_us(ctypes.c_int64(args.threads), ctypes.c_int64(pause))
            print(f"{args.threads} threads, {pause:3d} us between calls: at least {cost:5.1f} us")


if __name__ == "__main__":
    main()
