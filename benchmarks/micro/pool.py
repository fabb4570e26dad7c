"""What one call of `parallel` costs beyond its work, back to back and after a pause.

python benchmarks/micro/pool.py [--threads 2]
"""

from __future__ import annotations

import argparse
import ctypes
import subprocess
import tempfile
from pathlib import Path

from harness import FLAGS, RUNTIME

SOURCE = r"""
#include <time.h>
#include <unistd.h>
#include <algorithm>
#include <vector>
#include "threads.h"
using namespace fissile;

static double now_us() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e6 + t.tv_nsec * 1e-3;
}

static void work(void* arg, int64_t begin, int64_t end, int) {
  double until = now_us() + *static_cast<double*>(arg) * (end - begin);
  while (now_us() < until) {}
}

// Microseconds of a run of `launches` calls whose tiles take `tile_us` each, beyond the time that
// the tiles take on all threads; the median of `runs`, each after a pause.
extern "C" double cost_us(int64_t threads, int64_t launches, int64_t tiles, double tile_us,
                          int64_t pause_us, int64_t runs) {
  pool* p = pool_create(int(threads));
  std::vector<double> us;
  for (int i = 0; i < runs; i++) {
    if (pause_us) usleep(unsigned(pause_us));
    double t = now_us();
    for (int k = 0; k < launches; k++) parallel(p, work, &tile_us, tiles);
    us.push_back((now_us() - t) / launches - tile_us * tiles / threads);
  }
  pool_destroy(p);
  std::sort(us.begin(), us.end());
  return us[us.size() / 2];
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
        for tiles, tile_us in ((2, 0.0), (16, 0.0), (16, 1.0), (16, 5.0), (64, 1.0)):
            for launches, pause in ((100, 0), (1, 1000), (10, 1000)):
                cost = lib.cost_us(
                    *map(ctypes.c_int64, (args.threads, launches, tiles)),
                    ctypes.c_double(tile_us), *map(ctypes.c_int64, (pause, 200)),
                )  # fmt: skip
                print(
                    f"{args.threads} threads, {tiles:3d} tiles of {tile_us:g} us, {launches:3d} "
                    f"launches after {pause:4d} us: {cost:6.2f} us a launch beyond the work"
                )


if __name__ == "__main__":
    main()
