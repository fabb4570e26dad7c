"""Compiles small C++ on the run-time headers, once per instruction set, and loads it by ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

RUNTIME = Path(__file__).resolve().parents[3] / "src/fissile/targets/cpu/runtime"
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-psabi",
    "-fPIC",
    "-shared",
]
MACHINES = {"native": ["-march=native"], "plain": []}
if "avx512f" in (Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""):
    MACHINES["avx2"] = ["-march=native", "-mno-avx512f", "-mavx2", "-mfma"]
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")


class Library:
    """Functions that take arrays (as pointers) and integers (as int64)."""

    def __init__(self, path: Path) -> None:
        self.cdll = ctypes.CDLL(str(path))

    def __call__(self, name: str, *args: np.ndarray | int, result: type | None = None):
        function = getattr(self.cdll, name)
        function.restype = result
        return function(
            *(
                ctypes.c_void_p(a.ctypes.data) if isinstance(a, np.ndarray) else ctypes.c_int64(a)
                for a in args
            )
        )


@pytest.fixture(scope="session")
def compile_cpp(tmp_path_factory):
    """compile_cpp(body, machine, includes) -> Library; the body stands inside namespace fissile"""
    if not COMPILER:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("cpp")
    built: dict[tuple, Library] = {}

    def build(body: str, machine: str, *includes: str, sources: tuple[str, ...] = ()) -> Library:
        key = (body, machine, includes)
        if key not in built:
            cpp = folder / f"{len(built)}.cpp"
            library = folder / f"{len(built)}.so"
            head = "".join(f'#include "{name}"\n' for name in includes)
            cpp.write_text(f"{head}namespace fissile {{\n{body}\n}}\n")
            extra = [str(RUNTIME / name) for name in sources] + (["-pthread"] if sources else [])
            command = [COMPILER, *FLAGS, *MACHINES[machine], f"-I{RUNTIME}", "-o", library, cpp]
            done = subprocess.run([*command, *extra], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[:3000]
            built[key] = Library(library)
        return built[key]

    return build


@pytest.fixture
def assemble(tmp_path):
    """assemble(source, machine) -> the text of its assembly"""

    def build(source: str, machine: str) -> str:
        if not COMPILER or machine not in MACHINES:
            pytest.skip(f"no C++ compiler for {machine}")
        (tmp_path / "k.cpp").write_text(source)
        flags = [f for f in FLAGS if f != "-shared"] + MACHINES[machine]
        paths = ["-S", "-o", tmp_path / "k.s", tmp_path / "k.cpp"]
        subprocess.run([COMPILER, *flags, f"-I{RUNTIME}", *paths], check=True)
        return (tmp_path / "k.s").read_text()

    return build


@pytest.fixture
def runtime_folder() -> Path:
    return RUNTIME


@pytest.fixture(params=list(MACHINES))
def machine(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def machines() -> dict[str, bool]:
    """Every instruction set that can be tried here, and whether it fuses a product and a sum."""
    return {name: name != "plain" or platform.machine() == "aarch64" for name in MACHINES}


@pytest.fixture
def has_fma(machine: str, machines: dict[str, bool]) -> bool:
    return machines[machine]


@pytest.fixture
def lanes(compile_cpp, machine) -> int:
    library = compile_cpp('extern "C" int64_t lanes() { return VL; }', machine, "vec.h")
    return library("lanes", result=ctypes.c_int64)
