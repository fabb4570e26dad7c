"""How many threads numpy's products take.

OpenBLAS waits for its threads by spinning: a product that shares its processors with others takes a
time slice of theirs. On a machine with two busy processors the reference of YOLOX-Nano took 41 s,
with one thread 0.7 s. Where numpy has another library, nothing happens.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

MODULES = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
NAMES = (
    "scipy_openblas_{}_num_threads64_", "openblas_{}_num_threads64_", "openblas_{}_num_threads",
)  # fmt: skip


@contextmanager
def one_thread() -> Generator[None]:
    """numpy computes its products on the calling thread, in this whole process."""
    get, put = _functions()
    before = get()
    put(1)
    try:
        yield
    finally:
        put(before)


def _functions() -> tuple[Callable[[], int], Callable[[int], object]]:
    """OpenBLAS's functions by which numpy's threads are known and set."""
    file = next((sys.modules[m].__file__ for m in MODULES if m in sys.modules), None)
    if file and sys.platform != "win32":
        library = ctypes.CDLL(file)  # symbols of what it needs are found through it
        for name in NAMES:
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return lambda: 1, lambda threads: None
