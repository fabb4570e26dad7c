"""Runs every kernel that the selection may ever pick, and compares it with the evaluator.

    python tests/targets/cpu/kernel_check.py MODEL.onnx [--shape NAME=1,3,224,224] [--sample N]

Candidates are made as `compile.implement` makes them. Distinct ones (by key), or a random sample,
are compiled in batches and run in child processes, so that a crash costs one kernel. Every buffer
ends, or begins, at a page that nobody may touch; what the kernel should write, and its scratch, are
poisoned first. Oracle: `ir.evaluate.apply` over the region's nodes in float64, and in the types of
the graph for values at the edge of their range. A kernel must also give the same bits for any
partition of its tiles, whatever its scratch and outputs held before, and an elementwise one the
same bits as its scalar form.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import pickle
import random
import resource
import select
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from fissile.compile import implement
from fissile.ir.evaluate import apply
from fissile.ir.graph import Graph, Value
from fissile.ir.prims import Kind, kind
from fissile.ir.types import BOOL
from fissile.kernels.candidate import Candidate, Kernel, parameter_value
from fissile.kernels.identify import identify
from fissile.kernels.region import Region
from fissile.onnx.load import load
from fissile.targets.cpu.emit import RUNTIME
from fissile.targets.cpu.harness import batch_source
from fissile.targets.cpu.impls import maps
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.libraries import links
from fissile.targets.cpu.packing import pack
from fissile.targets.cpu.target import Cpu
from fissile.targets.cpu.toolchain import CompileError, Toolchain, find

sys.path.insert(0, str(Path(__file__).parent))
from running import from_memory, to_memory

BATCH, JOBS = 40, 2
TOLERANCE = 2e-5  # of an output's scale
YARDSTICK = 8.0  # times the error of the same region in the graph's own types
HANG_S = 300.0
POISON = (0xFF, 0x7B)  # NaN in every float type; large numbers


# ---------------------------------------------------------------- what to check


@dataclass(frozen=True)
class Case:
    """A candidate with its kernel (None for an alias, and before `prepared`) and, for elementwise
    ones, its scalar form."""

    candidate: Candidate
    cpu: Cpu
    kernel: Kernel | None = None
    scalar: Kernel | None = None

    @property
    def kernels(self) -> list[Kernel]:
        return [k for k in (self.kernel, self.scalar) if k is not None]


def cases_of(graph: Graph) -> list[Case]:
    """One case for each key, in a fixed order."""
    cpu = Cpu(graph)
    regions = identify(graph, cpu.limits, cpu.admissible)
    distinct = {c.key: c for c in reversed(implement(graph, cpu, regions))}
    return [Case(c, cpu) for c in reversed(distinct.values())]


def prepared(case: Case) -> Case | str:
    """With its kernels, or why it has none."""
    kernel = case.cpu.kernel(case.candidate)
    if not isinstance(kernel, Kernel):
        return f"taken for legal, but has no kernel: {kernel.reason}"
    case = replace(case, kernel=kernel)
    if case.candidate.impl != "map":
        return case
    writer = Writer(case.candidate)
    tiles, trees = maps._trees(case.candidate, writer, whole=True)
    plain = writer.kernel(list(writer.printer.trees(trees, indent=2)), tiles)
    name = f"{plain.name}_scalar"
    return replace(
        case, scalar=replace(plain, name=name, source=plain.source.replace(plain.name, name))
    )


def title(c: Candidate) -> str:
    def one(tokens) -> str:
        return ", ".join(f"{t.value.type}@{t.layout!r}" for t in tokens)

    prims = " ".join(n.prim for n in c.region.nodes)
    return f"{c.key} {c.impl} [{prims}] {one(c.needs)} -> {one(c.gives)}"


# ---------------------------------------------------------------- guarded memory

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
PAGE = 4096


class Guarded:
    """Bytes between two pages that fault. `at_end`: they end where the page behind begins."""

    def __init__(self, size_bytes: int, at_end: bool, poison: int):
        inner = -(-max(size_bytes, 1) // PAGE) * PAGE
        self.total = inner + 2 * PAGE
        base = _LIBC.mmap(None, self.total, 3, 0x22, -1, 0)
        assert base not in (None, ctypes.c_void_p(-1).value), "no memory"
        self.base, self.poison = base, poison
        _LIBC.mprotect(base, PAGE, 0)
        _LIBC.mprotect(base + PAGE + inner, PAGE, 0)
        self.room = np.frombuffer((ctypes.c_uint8 * inner).from_address(base + PAGE), np.uint8)
        self.start = inner - size_bytes if at_end else 0
        self.size_bytes = size_bytes
        self.room[:] = poison

    @property
    def bytes(self) -> np.ndarray:
        return self.room[self.start : self.start + self.size_bytes]

    @property
    def address(self) -> int:
        return self.base + PAGE + self.start

    @property
    def is_intact(self) -> bool:
        """Was nothing written around the bytes?"""
        outside = (self.room[: self.start], self.room[self.start + self.size_bytes :])
        return all(bool((part == self.poison).all()) for part in outside)

    def free(self) -> None:
        _LIBC.munmap(self.base, self.total)


# ---------------------------------------------------------------- inputs and the oracle

Arrays = Mapping[Value, np.ndarray]


def _limits(region: Region) -> dict[Value, int]:
    """Integers that index stay inside what they index."""
    found: dict[Value, int] = {}
    for n in region.nodes:
        if n.prim not in ("gather", "scatter"):
            continue
        extent = n.inputs[0].shape[n.attrs["axis"] if n.prim == "gather" else 0]
        stack = [n.inputs[1]]
        while stack:
            v = stack.pop()
            found[v] = min(found.get(v, extent), extent)
            if v.node in region.members:
                stack += v.node.inputs
    return found


def draw(
    region: Region, tensors: Sequence[Value], how: str, rng: np.random.Generator
) -> list[np.ndarray]:
    """how: normal, positive, special (zeros, infinities, NaN, large values among normal)."""
    limits = _limits(region)

    def one(v: Value) -> np.ndarray:
        dtype = v.type.dtype
        if dtype is BOOL:
            return rng.integers(0, 2, v.shape).astype(np.bool_)
        if not dtype.is_float:
            if v in limits:
                return rng.integers(-limits[v], limits[v], v.shape).astype(dtype.numpy)
            low = 0 if dtype.kind == "uint" else -9
            return rng.integers(low, 10, v.shape).astype(dtype.numpy)
        x = _normal(v.shape, rng)
        if how == "positive":
            return np.asarray(0.5 + np.abs(x) / 4).astype(dtype.numpy)
        x = np.asarray(x)
        if how == "special" and x.size:
            count = max(1, x.size // 50)
            odd = [
                0.0,
                -0.0,
                np.inf,
                -np.inf,
                np.nan,
                88.5,
                -104.0,
                1e-42,
                3e38,
                -3e38,
                0.5,
                1.5,
                2.5,
            ]
            x.reshape(-1)[rng.integers(0, x.size, count)] = rng.choice(np.float32(odd), count)
        with np.errstate(all="ignore"):
            return x.astype(dtype.numpy)

    return [one(v) for v in tensors]


@cache
def _pool() -> np.ndarray:
    return np.random.default_rng(0).standard_normal(1_000_003, np.float32)


def _normal(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Normal numbers; large arrays repeat a million of them."""
    if (size := math.prod(shape)) < 65536:
        return np.asarray(rng.standard_normal(shape, np.float32))
    start = int(rng.integers(0, len(_pool())))
    return np.resize(np.roll(_pool(), start), size).reshape(shape)


def oracle(c: Candidate, inputs: Sequence[np.ndarray], reference: bool) -> list[np.ndarray]:
    """The given tokens' values by numpy, in logical order."""
    if c.is_adapter:
        return [np.asarray(inputs[0])]
    known: dict[Value, np.ndarray] = {
        t.value: _entered(a, reference) for t, a in zip(c.needs, inputs, strict=True)
    }
    for v in c.region.inputs:
        if v.is_constant:
            known[v] = _entered(v.array, reference)
    for node in c.region.nodes:
        results = apply(node, [known[v] for v in node.inputs], reference)
        known.update(zip(node.outputs, results, strict=True))
    return [known[t.value] for t in c.gives]


def _entered(array: np.ndarray, reference: bool) -> np.ndarray:
    narrow = array.dtype.kind not in "iubc" and array.dtype != np.float64
    return array.astype(np.float64) if reference and narrow else array


# ---------------------------------------------------------------- one run

Parts = Sequence[tuple[int, int]]
Function = Callable[..., None]


def partitions(tiles: int) -> Iterator[Parts]:
    """All at once; in three uneven parts, the last first; every tile alone, or in many parts."""
    yield [(0, tiles)]
    a, b = tiles // 3, max(tiles // 3, tiles - 1)
    yield [(b, tiles), (a, b), (0, a)]
    step = -(-tiles // 97) or 1
    yield [(t, min(t + step, tiles)) for t in reversed(range(0, tiles, step))]


class Wrong(Exception):
    pass


def run(
    function: Function, c: Candidate, kernel: Kernel, inputs: Sequence[np.ndarray], parts: Parts,
    at_end: bool, poison: int,
) -> list[np.ndarray]:  # fmt: skip
    """The memory of the given tokens. Raises Wrong where something around them was written."""
    buffers: list[Guarded] = []
    try:
        for p in kernel.params:
            if p.role == "need":
                buffers.append(
                    _filled(to_memory(inputs[p.index], c.needs[p.index].layout), at_end, poison)
                )
            elif p.role == "constant":
                array = pack(parameter_value(c, p).array, p.packing)
                if array.size != p.elements:
                    raise Wrong(
                        f"{p.name} packs {array.size} elements, the kernel asks for {p.elements}"
                    )
                buffers.append(_filled(array, at_end, poison))
            elif p.role == "work":
                buffers.append(Guarded(p.elements * 4, at_end, poison))
            else:
                buffers.append(Guarded(c.gives[p.index].size_bytes, at_end, poison))
        scratch = Guarded(-(-kernel.scratch_bytes // 64) * 64, at_end, poison)
        buffers.append(scratch)
        pairs = list(zip(kernel.params, buffers, strict=False))  # all but the scratch
        before = [b.bytes.copy() for p, b in pairs if p.role in ("need", "constant")]
        pointers = (ctypes.c_void_p * len(kernel.params))(*(b.address for b in buffers[:-1]))
        closing = [(kernel.tiles, kernel.tiles + 1)] if kernel.closes else []
        for begin, end in (*parts, *closing):
            function(
                pointers, ctypes.c_void_p(scratch.address), ctypes.c_long(begin), ctypes.c_long(end)
            )
        for p, b in zip([*kernel.params, None], buffers, strict=True):
            if not b.is_intact:
                raise Wrong(f"wrote beside {p.name if p else 'its scratch'}")
        after = [b.bytes for p, b in pairs if p.role in ("need", "constant")]
        if any(not np.array_equal(a, b) for a, b in zip(before, after, strict=True)):
            raise Wrong("wrote into an input")
        return [b.bytes.copy() for p, b in pairs if p.role == "give"]
    finally:
        for b in buffers:
            b.free()


def _filled(array: np.ndarray, at_end: bool, poison: int) -> Guarded:
    buffer = Guarded(array.nbytes, at_end, poison)
    buffer.bytes[:] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return buffer


def differences(
    got: np.ndarray, want: np.ndarray, ordinary: np.ndarray, special: bool
) -> str | None:
    """What is wrong with one output.

    want: in float64; ordinary: in the graph's types, the only oracle of
    special values."""
    if got.dtype.kind in "iub":
        wrong = (got != want) & (got != ordinary)
        return f"{int(wrong.sum())} of {wrong.size} elements differ" if wrong.any() else None
    g, w, o = (np.asarray(a).astype(np.float64) for a in (got, want, ordinary))
    if special:
        w = o
    elif w.size:  # most are right
        scale = np.abs(w).max()
        if np.isfinite(scale) and np.abs(g - w).max() <= TOLERANCE * scale:
            return None
    same = (g == w) | (np.isnan(g) & np.isnan(w)) | (g == o) | (np.isnan(g) & np.isnan(o))
    finite = np.isfinite(w) & np.isfinite(o)
    odd = ~same & ~(finite & np.isfinite(g))
    if odd.any():
        where = tuple(int(i) for i in np.argwhere(odd)[0])
        first = f"first {where}: {g[where]} for {w[where]}"
        return f"{int(odd.sum())} of {odd.size} elements are off, {first}"
    if not finite.any():
        return None
    half = got.dtype.itemsize == 2
    scale = float(np.abs(w[finite]).max())
    yardstick = 0.0 if special else float(np.abs(o[finite] - w[finite]).max())
    allowed = max((0.02 if half else TOLERANCE) * scale, YARDSTICK * yardstick)
    if special:  # of each value: large ones stand next to small ones
        allowed = np.maximum(1e-3 * np.abs(w), 1e-3)
    with np.errstate(invalid="ignore"):
        wrong = ~same & (np.minimum(np.abs(g - w), np.abs(g - o)) > allowed)
    if not wrong.any():
        return None
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    worst = float(np.abs(g - w)[wrong].max())
    return (
        f"{int(wrong.sum())} of {wrong.size} elements are wrong by up to {worst:.2e} "
        f"of scale {scale:.2e}, yardstick {yardstick:.1e}, first {where}: {g[where]} for {w[where]}"
    )


def check(case: Case, functions: Mapping[str, Function], seed: int) -> list[str]:
    """Every fault of one case."""
    c, kernel = case.candidate, case.kernel
    faults: list[str] = []
    tensors = [t.value for t in c.needs]
    summed = any(kind(n) is Kind.LINEAR for n in c.region.nodes)
    if kernel is None:
        rng = np.random.default_rng(seed)
        return _check_alias(c, draw(c.region, tensors, "normal", rng))
    for k, how in enumerate(("normal", "positive", "special")):
        if how == "special" and (summed or any(n.prim in _SUMS for n in c.region.nodes)):
            continue  # infinities in a sum depend on its order
        inputs = draw(c.region, tensors, how, np.random.default_rng(seed + k))
        want, ordinary = (oracle(c, inputs, reference) for reference in (True, False))
        poisons = (*POISON, POISON[0])
        runs = list(zip(partitions(kernel.tiles), (True, False, True), poisons, strict=True))
        first: list[np.ndarray] | None = None
        for parts, at_end, poison in runs if k == 0 else runs[:2] if how == "special" else runs[:1]:
            try:
                memory = run(functions[kernel.name], c, kernel, inputs, parts, at_end, poison)
            except Wrong as fault:
                faults.append(f"{how}: {fault}")
                break
            if first is None:
                first = memory
            elif any(not np.array_equal(a, b) for a, b in zip(first, memory, strict=True)):
                faults.append(f"{how}: other bits for partition {parts[:4]} or poison {poison:#x}")
        if first is None:
            continue
        if case.scalar is not None:
            whole = [(0, case.scalar.tiles)]
            memory = run(
                functions[case.scalar.name], c, case.scalar, inputs, whole, True, POISON[0]
            )
            for t, a, b in zip(c.gives, first, memory, strict=True):
                x, y = (from_memory(m, t.value.type, t.layout) for m in (a, b))
                both_nan = np.isnan(x) & np.isnan(y) if t.value.type.dtype.is_float else False
                width = f"u{t.value.type.dtype.size_bytes}"
                other = (
                    np.ascontiguousarray(x).view(width) != np.ascontiguousarray(y).view(width)
                ) & ~both_nan
                if other.any():
                    at = tuple(int(i) for i in np.argwhere(other)[0])
                    faults.append(
                        f"{how}: vectors and scalars give other bits: "
                        f"{x[at]!r} and {y[at]!r} at {at}"
                    )
        for i, (t, m) in enumerate(zip(c.gives, first, strict=True)):
            got = from_memory(m, t.value.type, t.layout)
            if (what := differences(got, want[i], ordinary[i], how == "special")) is not None:
                faults.append(f"{how}: y{i}: {what}")
    return faults


_SUMS = ("reduce_sum", "reduce_mean", "reduce_prod", "window_sum")


def _check_alias(c: Candidate, inputs: Sequence[np.ndarray]) -> list[str]:
    (need,), (give,) = c.needs, c.gives
    memory = to_memory(inputs[0], need.layout).reshape(-1).view(np.uint8)
    offset, size = c.param["offset_bytes"], give.size_bytes
    if offset < 0 or offset + size > memory.size:
        return [f"the alias leaves its memory: {offset} + {size} of {memory.size}"]
    want = to_memory(oracle(c, inputs, False)[0], give.layout).reshape(-1).view(np.uint8)
    return (
        [] if np.array_equal(memory[offset : offset + size], want) else ["the alias is other data"]
    )


# ---------------------------------------------------------------- batches in child processes


def build(
    batch: Sequence[Case], folder: Path, toolchain: Toolchain
) -> list[tuple[Path, list[Case]]] | str:
    """Libraries with their cases; halves where one does not compile, the message if it is one."""
    folder.mkdir(parents=True)
    source = folder / "batch.cpp"
    source.write_text(batch_source([k for case in batch for k in case.kernels]))
    try:
        called = links({name for case in batch for k in case.kernels for name in k.libraries})
        library = toolchain.compile([source], folder / "batch.so", [f"-I{RUNTIME}"], links=called)
        return [(library, list(batch))]
    except CompileError as error:
        if len(batch) == 1:
            return str(error)
    found: list[tuple[Path, list[Case]]] = []
    middle = len(batch) // 2
    for name, part in (("a", batch[:middle]), ("b", batch[middle:])):
        built = build(part, folder / name, toolchain)
        if isinstance(built, str):
            print(f"does not compile: {title(part[0].candidate)}: {built}", flush=True)
            continue
        found += built
    return found


def run_batch(library: Path, cases: Sequence[Case], seed: int) -> dict[str, list[str]]:
    """Faults by key; after a crash or a hang, the rest without the kernel at fault."""
    faults: dict[str, list[str]] = {}
    left = list(cases)
    while left:
        done, how = _child(library, left, seed)
        faults.update(done)
        left = left[len(done) :]
        if left and how:
            faults[left[0].candidate.key] = [how]
            left = left[1:]
    return faults


def _child(library: Path, cases: Sequence[Case], seed: int) -> tuple[dict[str, list[str]], str]:
    """(faults of the cases that ended, how it failed)."""
    out, into = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(out)
        status = 1
        try:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            loaded = ctypes.CDLL(str(library))
            for case in cases:
                functions = {k.name: getattr(loaded, f"{k.name}_entry") for k in case.kernels}
                data = pickle.dumps((case.candidate.key, check(case, functions, seed)))
                os.write(into, struct.pack("<q", len(data)) + data)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(into)
    done: dict[str, list[str]] = {}
    how = ""
    while True:
        if not select.select([out], [], [], HANG_S)[0]:
            os.kill(pid, signal.SIGKILL)
            how = "hangs"
            break
        if len(head := os.read(out, 8)) < 8:
            break
        data = b""
        while len(data) < struct.unpack("<q", head)[0]:
            data += os.read(out, struct.unpack("<q", head)[0] - len(data))
        key, faults = pickle.loads(data)
        done[key] = faults
    os.close(out)
    _, status = os.waitpid(pid, 0)
    if not how and status:
        how = (
            f"crashes: {signal.Signals(status).name}"
            if os.WIFSIGNALED(status)
            else "the check itself failed"
        )
    return done, how


def check_all(
    cases: Sequence[Case], seed: int = 0, report: Callable[[str], None] = print
) -> dict[str, list[str]]:
    """Faults by key of the candidates that have some."""
    toolchain = find()
    aliases = [c for c in cases if c.candidate.is_alias]
    titles = {c.candidate.key: title(c.candidate) for c in cases}
    wrong: dict[str, list[str]] = {}

    def note(faults: Mapping[str, list[str]]) -> None:
        for key, what in faults.items():
            if what:
                wrong[key] = what
                report(f"WRONG {titles[key]}\n" + "\n".join(f"    {w}" for w in what))

    for case in aliases:
        note({case.candidate.key: check(case, {}, seed)})
    bodies: list[Case] = []
    for case in cases:
        if not case.candidate.is_alias:
            ready = prepared(case)
            if isinstance(ready, str):
                note({case.candidate.key: [ready]})
            else:
                bodies.append(ready)
    batches = [bodies[i : i + BATCH] for i in range(0, len(bodies), BATCH)]
    with (
        tempfile.TemporaryDirectory(prefix="fissile-check-") as folder,
        ThreadPoolExecutor(JOBS) as pool,
    ):
        waiting: dict[int, Future] = {}
        for i, batch in enumerate(batches):
            for k in range(i, min(i + JOBS + 1, len(batches))):
                if k not in waiting:
                    waiting[k] = pool.submit(build, batches[k], Path(folder) / str(k), toolchain)
            built = waiting.pop(i).result()
            if isinstance(built, str):
                note({batch[0].candidate.key: [built]})
                continue
            for library, part in built:
                note(run_batch(library, part, seed))
                library.unlink()
            done = f"{min((i + 1) * BATCH, len(bodies))} of {len(bodies)}"
            print(f"  {done} kernels, {len(wrong)} wrong", file=sys.stderr, flush=True)
    return wrong


def sample_of(cases: Sequence[Case], count: int | None, seed: int) -> list[Case]:
    """All, or a random part: of each implementation and set of primitives about as many."""
    if count is None or count >= len(cases):
        return list(cases)
    rng = random.Random(seed)
    shuffled = rng.sample(list(cases), len(cases))
    kinds: dict[tuple, list[Case]] = {}
    for case in shuffled:
        c = case.candidate
        key = (c.impl, tuple(sorted({n.prim for n in c.region.nodes})))
        kinds.setdefault(key, []).append(case)
    found: list[Case] = []
    groups = list(kinds.values())
    depth = 0
    while len(found) < count:
        row = [g[depth] for g in groups if len(g) > depth]
        found += row[: count - len(found)]
        depth += 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--shape", action="append", default=[], metavar="NAME=1,3,224,224")
    parser.add_argument("--sample", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="keys or implementations to check, by comma")
    given = parser.parse_args()
    shapes = {}
    for text in given.shape:
        name, _, extents = text.rpartition("=")
        shapes[name] = [int(e) for e in extents.split(",") if e]
    start = time.monotonic()
    graph = load(given.model, shapes or None)
    cases = cases_of(graph)
    made = time.monotonic()
    only = given.only.split(",") if given.only else []
    if only:
        cases = [c for c in cases if c.candidate.key in only or c.candidate.impl in only]
    chosen = sample_of(cases, given.sample, given.seed)
    wrong = check_all(chosen, given.seed)
    took = f"{made - start:.0f} s to make them, {time.monotonic() - made:.0f} s to check"
    what = f"{len(chosen)} of {len(cases)} kernels checked, {len(wrong)} wrong"
    print(f"{Path(given.model).name}: {what}; {took}")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
