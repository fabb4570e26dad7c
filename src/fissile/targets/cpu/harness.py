"""Times kernels on this processor: the bench of `cost.measure`.

A round of kernels is compiled in batches, one shared library each, side by side; then, with the
machine quiet, a small C++ program (runtime of its own, see `bench/runner.cpp`) loads each library
and times its kernels, visiting them in turn. It runs apart, so a kernel that crashes or hangs costs
itself only. A batch that does not compile is split in halves until the kernel at fault is alone.
What the machine does to the program (too little memory, too many others) is no kernel's fault: it
runs once more, then its kernels stay without a time, in this process.
"""

from __future__ import annotations

import atexit
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType

from fissile.cost.measure import Keyed
from fissile.cost.store import Place, Timing, home
from fissile.errors import ToolchainError
from fissile.ir.types import DTYPES
from fissile.kernels.candidate import Kernel, Param
from fissile.targets.cpu.emit import RUNTIME, entry, kernel_includes, runtime_files
from fissile.targets.cpu.host import usable_threads
from fissile.targets.cpu.libraries import links
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.toolchain import CompileError, Toolchain

BATCH = 20
RUNNER = Path(__file__).parent / "bench" / "runner.cpp"
_LIMIT_S = 120.0  # one batch
_NO_MEMORY = 3  # the program's status, without a word
_FOREIGN = set(signal.Signals) - {  # all signals but those that a kernel brings upon itself
    signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT, signal.SIGTRAP,
    signal.SIGSYS,
}  # fmt: skip
_FILLS = {"f32": "f", "f64": "d", "f16": "h", "bf16": "b"}  # others are filled with zeros
_BY_C = {d.c: d for d in DTYPES if d.c}


@dataclass(frozen=True)
class CpuBench:
    """`cold_weights`: constants are evicted from cache before every timed call."""

    toolchain: Toolchain
    threads: int = 1
    cold_weights: bool = True
    jobs: int = field(default_factory=usable_threads)
    version: str = "1"

    @property
    def round_size(self) -> int:
        return BATCH * self.jobs

    @property
    def place(self) -> Place:
        """The part of a store's key that this bench decides."""
        warmth = "" if self.cold_weights else " | warm weights"
        parts = [RUNNER.read_text(), *runtime_files().values()]
        runtime = hashlib.sha256("".join(parts).encode()).hexdigest()[:12]
        return Place(self.toolchain.identity + warmth, self.threads, f"{self.version}.{runtime}")

    def time(
        self, kernels: Sequence[Keyed], limits: Mapping[str, float] = MappingProxyType({})
    ) -> Mapping[str, Timing]:
        """A timing for every key. `limits`: microseconds above which nobody asks how many, by key.
        Raises ToolchainError where the compiler cannot run. Warns of kernels that could not be
        timed because the program was stopped."""
        share = min(BATCH, -(-len(kernels) // self.jobs))
        batches = [kernels[i : i + share] for i in range(0, len(kernels), max(1, share))]
        runner = build_runner(self.toolchain)
        with tempfile.TemporaryDirectory(prefix="fissile-bench-") as folder:
            places = [Path(folder) / str(i) for i in range(len(batches))]
            with ThreadPoolExecutor(self.jobs) as pool:
                built = list(pool.map(self._build, batches, places))
            timings: dict[str, Timing] = {}
            with _turn():
                for libraries, faults in built:
                    timings.update(faults)
                    for library, batch in libraries:
                        timings.update(self._run(runner, library, batch, limits))
        return timings

    def _build(
        self, batch: Sequence[Keyed], folder: Path
    ) -> tuple[list[tuple[Path, Sequence[Keyed]]], dict[str, Timing]]:
        """([(library, its kernels)], faults by key)."""
        folder.mkdir(parents=True)
        source = folder / "batch.cpp"
        try:
            source.write_text(batch_source([k for _, k in batch]))
            called = links({name for _, k in batch for name in k.libraries})
            library = self.toolchain.compile(
                [source], folder / "batch.so", [f"-I{RUNTIME}"], links=called
            )
        except CompileError as error:
            if len(batch) == 1:
                return [], {batch[0][0]: Timing(None, fault=str(error))}
            middle = len(batch) // 2
            left, right = (
                self._build(part, folder / name)
                for name, part in (("a", batch[:middle]), ("b", batch[middle:]))
            )
            return [*left[0], *right[0]], {**left[1], **right[1]}
        except OSError as error:
            raise ToolchainError(f"cannot write {source}: {error.strerror}") from None
        return [(library, batch)], {}

    def _run(
        self, runner: Path, library: Path, batch: Sequence[Keyed], limits: Mapping[str, float]
    ) -> dict[str, Timing]:
        """Time one library; after a crash or a hang, the rest without the kernel at fault."""
        timings: dict[str, Timing] = {}
        left, stops = list(batch), 0
        while left:
            end = self._executed(runner, library, left, limits)
            timings.update(end.timings)
            if end.status == 0:
                nothing = Timing(None, fault="the timing program said nothing about it")
                named = {k.name: key for key, k in left}.values()
                timings.update({key: nothing for key in named if key not in timings})
                break
            elif end.is_stopped:
                stops += 1
                suspects = [one for one in left if one[0] == end.last and end.status is None]
                timings.update(again := self._alone(runner, library, suspects, limits))
                stops -= any(t.fault for t in again.values())  # this explains it
            elif end.last is None:
                raise ToolchainError(
                    f"the timing program failed with status {end.status}: {end.output[-300:]}"
                )
            else:
                timings[end.last] = _crash(dict(left)[end.last], end.status)
            left = [(key, k) for key, k in left if key not in timings]
            if stops > 1:
                _warn_of(end.status)
                timings.update({key: Timing(None) for key, _ in left})
                break
        return timings

    def _alone(
        self, runner: Path, library: Path, suspects: Sequence[Keyed], limits: Mapping[str, float]
    ) -> dict[str, Timing]:
        """Time the kernel (or none) at which the time was up. Too slow alone too, it is no choice
        for this process; the next one may find a less busy machine."""
        timings: dict[str, Timing] = {}
        for key, kernel in suspects:
            end = self._executed(runner, library, [(key, kernel)], limits)
            timings.update(end.timings)
            if end.status is None:
                fault = f"kernel {kernel.name} runs for more than {_LIMIT_S:.0f} s"
                timings[key] = Timing(None, fault=fault, lasts=False)
            elif end.status and not end.is_stopped:
                timings[key] = _crash(kernel, end.status)
        return timings

    def _executed(
        self, runner: Path, library: Path, batch: Sequence[Keyed], limits: Mapping[str, float]
    ) -> _End:
        """Run the timing program once."""
        names = {k.name: key for key, k in batch}
        orders = "".join(_order(k, limits.get(key, 0.0)) for key, k in batch)
        cold, l2_bytes = int(self.cold_weights), this_machine().l2_bytes
        command = [str(a) for a in (runner, library, self.threads, cold, l2_bytes)]
        status, output = _executed(command, orders)
        return _End(status, output, _timings(output, names), names.get(_last_started(output)))


@dataclass(frozen=True)
class _End:
    """How the timing program ended. `status` None: its time was up. `last`: the key of the kernel
    that it visited last."""

    status: int | None
    output: str
    timings: Mapping[str, Timing]
    last: str | None

    @property
    def is_stopped(self) -> bool:
        """Was it ended from outside?"""
        found_no_memory = self.status == _NO_MEMORY and not self.output
        return self.status is None or found_no_memory or -self.status in _FOREIGN


def _crash(kernel: Kernel, status: int | None) -> Timing:
    return Timing(None, fault=f"kernel {kernel.name} crashes (status {status})")


def _warn_of(status: int | None) -> None:
    """Text without numbers that change: Python shows it once."""
    how = f"was killed (signal {-status})" if status and status < 0 else "found no memory"
    how = f"took more than {_LIMIT_S:.0f} s" if status is None else how
    warnings.warn(
        f"the timing program {how}, twice: kernels stay without a measured time. Is the machine "
        "busy, or short of memory?", stacklevel=2,
    )  # fmt: skip


def batch_source(kernels: Sequence[Kernel]) -> str:
    """One file of kernels with an exported entry each."""
    linkage = 'extern "C" __attribute__((visibility("default"))) void'
    distinct = {k.name: k for k in kernels}.values()
    text = "\n".join(f"{k.source}\n{entry(k, linkage)}" for k in distinct)
    return f"{kernel_includes(runtime_files(), '')}\nnamespace fissile {{\n{text}\n}}\n"


def build_runner(toolchain: Toolchain) -> Path:
    """The timing program, built once per compiler and kept below FISSILE_HOME."""
    parts = [RUNNER.read_text(), *runtime_files().values(), toolchain.identity]
    digest = hashlib.sha256("".join(parts).encode()).hexdigest()[:16]
    program = home() / "bench" / f"runner-{digest}"
    if not program.exists() and not _is_writable(program.parent):
        program = _own_folder() / f"runner-{digest}"
    if not program.exists():
        part = program.with_name(f"{program.name}.{os.getpid()}")
        try:
            program.parent.mkdir(parents=True, exist_ok=True)
            toolchain.program(RUNNER, part, [f"-I{RUNTIME}", "-ldl"])
            os.replace(part, program)
        except OSError as error:
            raise ToolchainError(f"cannot write {program}: {error.strerror}") from None
        finally:
            part.unlink(missing_ok=True)
    return program


@contextmanager
def _turn() -> Iterator[None]:
    """Processes that share FISSILE_HOME time one after another; they compile when they like."""
    with ExitStack() as stack:
        with suppress(OSError):
            file = stack.enter_context((home() / "bench" / "turn").open("a"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@cache
def _own_folder() -> Path:
    """A folder of this process alone, where FISSILE_HOME cannot be written."""
    folder = Path(tempfile.mkdtemp(prefix="fissile-runner-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _is_writable(folder: Path) -> bool:
    """Can a file be made there, folders included?"""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def _order(kernel: Kernel, limit_us: float) -> str:
    """What the runner reads about a kernel: name, limit, tiles, whether it closes, scratch, then
    fill, role and bytes of pointers."""
    params = " ".join(f"{_fill(p)}{p.role[0]}{_bytes(p)}" for p in kernel.params)
    tiles = f"{kernel.tiles} {int(kernel.closes)}"
    size = f"{tiles} {kernel.scratch_bytes} {len(kernel.params)}"
    return f"{kernel.name} {limit_us:.4f} {size} {params}\n"


def _fill(param: Param) -> str:
    return _FILLS.get(_BY_C[param.element].name, "z")


def _bytes(param: Param) -> int:
    return param.elements * _BY_C[param.element].size_bytes


def _executed(command: Sequence[str], text: str) -> tuple[int | None, str]:
    """(status or None after the time limit, output)."""
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(text, timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return None, output
        except BaseException:
            process.kill()
            raise
    return process.returncode, output


def _timings(output: str, names: Mapping[str, str]) -> dict[str, Timing]:
    """Lines `time NAME US MEDIAN_US`."""
    found: dict[str, Timing] = {}
    for line in output.splitlines():
        words = line.split()
        if len(words) == 4 and words[0] == "time":
            us, median = float(words[2]), float(words[3])
            found[names[words[1]]] = Timing(us, (median - us) / max(us, 1e-6))
    return found


def _last_started(output: str) -> str:
    started = [line.split()[1] for line in output.splitlines() if line.startswith("start ")]
    return started[-1] if started else ""
