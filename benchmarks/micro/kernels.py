"""Elementwise, layout and row kernels at the shapes of real networks: time against the larger of a
copy of as many bytes at the same working set and the vector operations at peak.

    python benchmarks/micro/kernels.py [--machine avx2] [--only NAME]

A ratio of 1 is that limit; small kernels pass it where they store less often than the copy. A
function counts the vector operations that `ir/prims.py` gives it, a row kernel those of its passes.
Lines of a row that is reduced and read again enter the first cache twice where the row is larger
than that: then a second ratio is to the copy and a measured second reading of such rows together.
"""

from __future__ import annotations

import argparse
import ctypes
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from harness import TIMER, aligned, compile_cpp

from fissile.ir import prims as p
from fissile.ir.graph import Value, placeholder, walk
from fissile.ir.layout import Layout, Token, channels_last, row_major
from fissile.ir.prims import PRIMS
from fissile.ir.types import of
from fissile.kernels.candidate import Candidate, Kernel, parameter_value
from fissile.kernels.region import Region
from fissile.targets.cpu.emit import entry
from fissile.targets.cpu.impls import maps, rows
from fissile.targets.cpu.machine import Machine, this_machine

LAST = channels_last(4)
REDUCES = ("reduce_sum", "reduce_mean", "reduce_max")
MACHINES = {"native": this_machine(), "avx2": Machine(vl=8), "narrow": Machine(vl=8)}


@dataclass(frozen=True)
class Case:
    """`operations`: vector operations for each element of the largest tensor."""

    name: str
    outputs: tuple[Value, ...]
    operations: float
    layouts: dict[Value, Layout]


def cases() -> list[Case]:
    found: list[Case] = []

    def case(name: str, y: Value | Sequence[Value], ops: float, **layouts: Layout) -> None:
        outputs = (y,) if isinstance(y, Value) else tuple(y)
        last = layouts.get("all")
        values = [v for n in walk(v.node for v in outputs) for v in n.outputs]
        by_value = {v: last for v in values if last is not None and v.rank == 4}
        found.append(Case(name, outputs, ops, by_value))

    def x(*shape: int) -> Value:
        return placeholder(of(shape))

    def softmax(v: Value, axis: int) -> Value:
        e = p.exp(v - p.reduce_max(v, axis))
        return e / p.reduce_sum(e, axis)

    def norm(v: Value, axes: int | tuple[int, ...], *affine: int) -> Value:
        w = p.constant(aligned(math.prod(affine))[:-16].reshape(affine))
        centred = v - p.reduce_mean(v, axes)
        return centred * p.rsqrt(p.reduce_mean(centred * centred, axes) + 1e-5) * w + w

    a = x(1, 32, 112, 112)
    case("relu6 112x112x32", p.clip(a, 0.0, 6.0), 2, all=LAST)
    case("add 56x56x256", x(1, 256, 56, 56) + x(1, 256, 56, 56), 1, all=LAST)
    case("add 14x14x256", x(1, 256, 14, 14) + x(1, 256, 14, 14), 1, all=LAST)
    b = x(1, 16, 208, 208)
    case("silu 208x208x16", b * p.sigmoid(b), 12, all=LAST)
    b = x(1, 64, 52, 52)
    case("silu 52x52x64", b * p.sigmoid(b), 12, all=LAST)
    b = x(1, 128, 56, 56)
    case("hardswish 56x56x128", b * (p.clip(b + 3.0, 0.0, 6.0) * (1 / 6)), 5, all=LAST)
    b = x(1, 64, 104, 104)
    case("mish 104x104x64", b * p.tanh(p.softplus(b)), 15, all=LAST)
    b = x(1, 128, 1536)
    case("gelu 128x1536", b * 0.5 * (p.erf(b / math.sqrt(2)) + 1.0), 19)
    for name in ("exp", "log", "tanh", "sigmoid", "erf", "softplus"):
        function = p.elementwise(name)
        case(f"{name} 2048", function(x(2048)), PRIMS[name].flops)
        case(f"{name} 128x1536", function(b), PRIMS[name].flops)
    case("softmax 12x128x128", softmax(x(12, 128, 128), -1), 14)
    case("softmax 16384x256", softmax(x(1, 16384, 256), -1), 14)
    case("softmax channels-first 150x64x64", softmax(x(1, 150, 64, 64), 1), 14)
    case("softmax channels-last 150x64x64", softmax(x(1, 150, 64, 64), 1), 14, all=LAST)
    case("layer norm 128x384", norm(x(1, 128, 384), -1, 384), 7)
    case("layer norm 16384x32", norm(x(1, 16384, 32), -1, 32), 7)
    case("layer norm 1024x160", norm(x(1, 1024, 160), -1, 160), 7)
    case("instance norm 128x56x56", norm(x(1, 128, 56, 56), (2, 3), 128, 1, 1), 7)
    case("instance norm 32x224x224", norm(x(1, 32, 224, 224), (2, 3), 32, 1, 1), 7)
    c = x(1, 1280, 7, 7)
    case("global pool 7x7x1280", p.reduce_mean(c, (2, 3)), 1, all=LAST)
    case("global pool 1280x7x7", p.reduce_mean(c, (2, 3)), 1)
    case("transpose 64x56x56 to last", p.transpose(x(64, 3136), (1, 0)), 0)
    case("transpose 12x128x32", p.transpose(x(128, 12, 32), (1, 0, 2)), 0)
    case("transpose 3136x64", p.transpose(x(3136, 64), (1, 0)), 0)
    k = x(1, 128, 384) + p.constant(aligned(384)[:384])
    heads = p.transpose(p.reshape(k, (1, 128, 12, 32)), (0, 2, 3, 1))
    case("add, transpose 128x384 to heads", heads, 1)
    f = p.reshape(p.transpose(x(1, 128, 4096), (0, 2, 1)), (1, 4096, 128))
    case("gelu, transpose 4096x128", f * 0.5 * (p.erf(f / math.sqrt(2)) + 1.0), 19)
    case("concat 2 x 14x14x384", p.concat([x(1, 384, 14, 14), x(1, 384, 14, 14)], 1), 0, all=LAST)
    case("concat 2 x 52x52x64", p.concat([x(1, 64, 52, 52), x(1, 64, 52, 52)], 1), 0)
    d = x(1, 768, 14, 14)
    case("slice 14x14x768", p.slice_(d, (0, 256, 0, 0), (1, 512, 14, 14), (1,) * 4), 0, all=LAST)
    e = x(1, 64, 56, 56)
    case("pad 56x56x64", p.pad(e, (0, 0, 1, 1), (0, 0, 1, 1), "constant"), 0, all=LAST)
    case("pad 64x56x56", p.pad(e, (0, 0, 1, 1), (0, 0, 1, 1), "constant"), 0)
    image = x(1, 3, 224, 224)
    case("pad 3x224x224", p.pad(image, (0, 0, 3, 3), (0, 0, 3, 3), "constant"), 0)
    return found


def candidate_of(case: Case) -> Candidate:
    nodes = walk(v.node for v in case.outputs)
    region = Region(tuple(n for n in nodes if n.prim not in ("input", "constant")), case.outputs)

    def token(v: Value) -> Token:
        return Token(v, case.layouts.get(v, row_major(v.rank)))

    needs, gives = tuple(map(token, region.tensors)), tuple(map(token, region.outputs))
    return Candidate(region, "micro", (), needs, gives)


def row_read_again(candidate: Candidate, machine: Machine) -> int:
    """Elements of a row that leaves the first cache between its reduction and what reads both; 0
    where there is none."""
    nodes = candidate.region.nodes
    rows_ = [n.inputs[0].type.numel // n.value.type.numel for n in nodes if n.prim in REDUCES]
    spread = any(v.type.numel == max(t.elements for t in candidate.needs)
                 for v in candidate.region.outputs)  # fmt: skip
    return max((r for r in rows_ if spread and 4 * r > machine.l1_bytes), default=0)


def kernel_of(candidate: Candidate, machine: Machine) -> Kernel:
    reduces = any(n.prim.startswith("reduce") for n in candidate.region.nodes)
    kernel = (rows if reduces else maps).lower(candidate, machine)
    if not kernel:
        raise SystemExit(kernel.reason)
    return kernel


LOOPS = """
typedef void (*entry)(void* const* pointers, char* scratch, int64_t begin, int64_t end);
extern "C" double kernel_us(entry f, void* const* pointers, char* scratch, int64_t tiles,
                            int64_t reps) {
  f(pointers, scratch, 0, tiles);  // the kernels before it have pushed its tensors out
  const double start = now_us();
  for (int64_t i = 0; i < reps; i++) f(pointers, scratch, 0, tiles);
  return (now_us() - start) / reps;
}
extern "C" double read_us(const float* x, int64_t n, int64_t reps) {
  double start = 0;
  vf total[8] = {};
  for (int64_t k = 0; k <= reps; k++) {
    if (k == 1) start = now_us();
    for (int64_t i = 0; i + 8 * VL <= n; i += 8 * VL)
      for (int v = 0; v < 8; v++) total[v] = total[v] + load<vf>(x + i + v * VL);
    asm volatile("" : "+m"(total));
  }
  return (now_us() - start) / reps;
}
extern "C" double copy_us(const float* x, float* y, int64_t n, int64_t reps) {
  double start = 0;
  for (int64_t k = 0; k <= reps; k++) {
    if (k == 1) start = now_us();
    for (int64_t i = 0; i < n; i += VL) store(y + i, load<vf>(x + i));
    asm volatile("" : : : "memory");
  }
  return (now_us() - start) / reps;
}
"""


class Timed:
    """One kernel with its buffers, and a copy of as many bytes."""

    def __init__(
        self, lib: ctypes.CDLL, case: Case, candidate: Candidate, kernel: Kernel,
        again: int,
    ):  # fmt: skip
        self.case, self.kernel, self.again = case, kernel, again
        self.entry = getattr(lib, f"{kernel.name}_entry")
        self.arrays: list[np.ndarray] = []
        sizes = [t.elements for t in (*candidate.needs, *candidate.gives)]
        for q in kernel.params:
            if q.role == "constant":
                data = aligned(q.elements)
                data[: q.elements] = parameter_value(candidate, q).array.reshape(-1)
                self.arrays.append(data)
            else:
                self.arrays.append(aligned(q.elements))
        self.bytes = 4 * sum(sizes)
        self.elements = max(sizes)
        self.half = sum(sizes) // 2
        self.copies = aligned(self.half), aligned(self.half)
        self.scratch = aligned(kernel.scratch_bytes // 4 + 16)
        self.pointers = (ctypes.c_void_p * len(self.arrays))(*(a.ctypes.data for a in self.arrays))
        self.lib, self.kernel_us, self.copy_us, self.again_us = lib, math.inf, math.inf, math.inf

    def round(self) -> None:
        reps = ctypes.c_long(max(8, min(2000, int(2e7 / self.bytes))))
        tiles = ctypes.c_long(self.kernel.tiles)
        scratch, x, y = (ctypes.c_void_p(a.ctypes.data) for a in (self.scratch, *self.copies))
        us = self.lib.kernel_us(self.entry, self.pointers, scratch, tiles, reps)
        self.kernel_us = min(self.kernel_us, us)
        self.copy_us = min(self.copy_us, self.lib.copy_us(x, y, ctypes.c_long(self.half), reps))
        if row := self.again:
            us = self.lib.read_us(x, ctypes.c_long(row), reps) * self.elements / row
            self.again_us = min(self.again_us, us)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", choices=list(MACHINES), default="native")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    chosen = [c for c in cases() if args.only in c.name]
    candidates = [candidate_of(c) for c in chosen]
    kernels = [kernel_of(c, MACHINES[args.machine]) for c in candidates]
    text = "".join(k.source + entry(k, 'extern "C" void') for k in kernels)
    headers = '#include "prims.h"\n#include "transpose.h"\n'
    source = f"{TIMER}{headers}namespace fissile {{\n{LOOPS}{text}}}\n"
    lib = compile_cpp(source, args.machine)
    lib.peak.restype = lib.kernel_us.restype = lib.copy_us.restype = ctypes.c_double
    lib.read_us.restype = ctypes.c_double
    again = [row_read_again(c, MACHINES[args.machine]) for c in candidates]
    jobs = [Timed(lib, *each) for each in zip(chosen, candidates, kernels, again, strict=True)]
    peak_us = math.inf
    for _ in range(args.rounds):
        peak_us = min(peak_us, lib.peak(ctypes.c_int64(20_000)))
        for job in jobs:
            job.round()
    vectors_us = 12 * 20_000 / peak_us  # vector operations in a microsecond
    for job in jobs:
        arithmetic = job.elements / lib.lanes() * job.case.operations / vectors_us
        limit = max(job.copy_us, arithmetic)
        twice = max(job.copy_us + job.again_us, arithmetic) / job.kernel_us
        second = f", with a second reading {twice:.2f}" if job.again else ""
        ratio = f"{limit / job.kernel_us:5.2f}{second}"
        print(f"{job.case.name:36s} {job.kernel_us:8.1f} us  copy {job.copy_us:7.1f}  "
              f"arithmetic {arithmetic:7.1f}  ratio {ratio}")  # fmt: skip


if __name__ == "__main__":
    main()
