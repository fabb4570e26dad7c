"""The C++ compiler of the machine: find it, name it, run it.

`find` takes $CXX, else c++, g++ or clang++, else the ziglang package. Every failure is a
`ToolchainError` that says what to do; a compiler's whole output is kept in a log below
FISSILE_HOME.
"""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fissile.cost.store import home
from fissile.errors import ToolchainError
from fissile.targets.cpu.host import ISA, cpu_model, usable_threads

FLAGS = (
    "-std=c++17", "-O3", "-march=native", "-ffp-contract=off", "-fno-math-errno",
    "-fno-trapping-math", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wno-psabi",
)  # fmt: skip
SHARED = ("-shared",)
NAMES = ("c++", "g++", "clang++")
FULL = (
    "No space left on device",
    "File too large",
    "File size limit exceeded",
    "Disk quota exceeded",
)
REMEDY = (
    "Install one (such as the system's g++ or clang++, or `pip install 'fissile[zig]'`), "
    "or set CXX."
)


class CompileError(ToolchainError):
    """The compiler refused the text: repeating it gives the same."""


@dataclass(frozen=True)
class Toolchain:
    """`command` runs the compiler; `version` is its first line of --version."""

    command: tuple[str, ...]
    version: str
    flags: tuple[str, ...] = FLAGS

    @property
    def identity(self) -> str:
        """What a measurement depends on besides the kernel: processor, compiler and flags."""
        return f"{cpu_model()} | {self.version} | {' '.join(self.flags)}"

    def isa(self) -> tuple[str, ...]:
        """The instruction sets that compiled code uses, as the processor names them."""
        return _isa(self.command, self.flags)

    def compile(
        self,
        sources: Sequence[Path],
        output: Path,
        flags: Sequence[str] = (),
        jobs: int | None = None,
        links: Sequence[str] = (),
    ) -> Path:
        """Compile `sources`, several at a time, into the shared library `output`; `links` are words
        for the linker.

        Raises ToolchainError with the first error line and the place of the log.
        """
        all_flags = (*self.flags, *flags)
        if len(sources) == 1:
            return self._run(
                [*all_flags, *SHARED, str(sources[0]), "-o", str(output), *links], output
            )
        objects = [output.parent / f"{output.name}.{i}.o" for i in range(len(sources))]
        with ThreadPoolExecutor(jobs or usable_threads()) as pool:
            tasks = [
                pool.submit(self._run, [*all_flags, "-c", str(s), "-o", str(o)], o)
                for s, o in zip(sources, objects, strict=True)
            ]
            done = [task.exception() for task in tasks]
        try:
            for error in filter(None, done):
                raise error
            return self._run(
                [*all_flags, *SHARED, *map(str, objects), "-o", str(output), *links], output
            )
        finally:
            for path in objects:
                path.unlink(missing_ok=True)

    def program(self, source: Path, output: Path, flags: Sequence[str] = ()) -> Path:
        """Compile one source into a program."""
        return self._run([*self.flags, str(source), "-o", str(output), *flags], output)

    def _run(self, arguments: list[str], output: Path) -> Path:
        command = [*self.command, *arguments]
        try:
            result = subprocess.run(command, capture_output=True, env=_environment(), check=False)
        except OSError as error:
            raise ToolchainError(
                f"cannot start {self.command[0]}: {error.strerror}. {REMEDY}"
            ) from None
        text = (result.stdout + result.stderr).decode("utf-8", "replace")
        if not result.returncode and not output.exists():
            raise ToolchainError(
                f"{self.command[0]} is no C++ compiler: it was asked to compile, ended without a "
                f"fault and wrote nothing. {REMEDY}"
            )
        if result.returncode:
            raise _failure(self.command, text, result.returncode, _log(command, text))
        return output


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _failure(command: Sequence[str], text: str, status: int, log: str) -> ToolchainError:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(sign in line for line in lines for sign in FULL):
        return ToolchainError(
            f"the disk is full: {command[0]} could not write its output. Free some space."
        )
    first = next(
        (s for s in lines if "error" in s.lower()), lines[0] if lines else f"status {status}"
    )
    what = f"{shlex.join(command)} failed: {first[:300]}\nThe compiler's whole output is in {log}."
    if status < 0 or "Killed" in first:
        return ToolchainError(f"{what}\nIt was killed: is there enough memory?")
    return CompileError(what)


def _log(command: Sequence[str], text: str) -> str:
    """Keep a failing command and its output; the path, or why there is none."""
    body = f"$ {shlex.join(command)}\n{text}"
    path = home() / "logs" / f"compiler-{hashlib.sha256(body.encode()).hexdigest()[:12]}.log"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(body)
    except OSError as error:
        return f"no file ({errno.errorcode.get(error.errno or 0, 'unknown')} on writing {path})"
    return str(path)


def find() -> Toolchain:
    """The compiler to use. Raises ToolchainError where there is none."""
    chosen = os.environ.get("CXX", "").strip()
    if chosen:
        try:
            words = tuple(shlex.split(chosen))
        except ValueError as error:  # such as a quote that does not end
            raise ToolchainError(f"CXX is {chosen!r}, which is no command: {error}.") from None
        return _checked(words, f"CXX is {chosen!r}, which ")
    for name in NAMES:
        if path := shutil.which(name):
            return _checked((path,), f"{path} ")
    if importlib.util.find_spec("ziglang"):
        return _checked((sys.executable, "-m", "ziglang", "c++"), "the ziglang package ")
    raise ToolchainError(
        f"no C++ compiler: CXX is not set, no {', '.join(NAMES)} on PATH. {REMEDY}"
    )


def _checked(command: tuple[str, ...], who: str) -> Toolchain:
    try:
        result = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, env=_environment(), check=False
        )
    except OSError as error:
        raise ToolchainError(f"{who}does not start: {error.strerror}. {REMEDY}") from None
    if result.returncode or not result.stdout.strip():
        raise ToolchainError(f"{who}is no C++ compiler: `--version` failed. {REMEDY}")
    return Toolchain(command, result.stdout.strip().splitlines()[0])


@cache
def _isa(command: tuple[str, ...], flags: tuple[str, ...]) -> tuple[str, ...]:
    result = subprocess.run(
        [*command, *flags, "-dM", "-E", "-x", "c++", os.devnull],
        capture_output=True, text=True, env=_environment(), check=False,
    )  # fmt: skip
    macros = {line.split()[1] for line in result.stdout.splitlines() if line.startswith("#define")}
    return tuple(sorted(flag for macro, flag in ISA.items() if macro in macros))
