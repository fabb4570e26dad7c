"""Every kernel shape of the networks against the limits of this core, measured in the same process.

    python benchmarks/kernels.py [NAME or FILE.onnx ...] [--threads N] [--bar 0.85] [--only TEXT]

A shape is a convolution, contraction, depthwise convolution or pool of a network with its pad and
its bias, in the layout that is fastest; rivals that save multiplications are left out. Contractions
and convolutions are held against the peak of fused multiply-adds; what moves many bytes for its
arithmetic, as depthwise convolutions and pools, against the larger of its arithmetic at that peak
and plain loops that read and write as many bytes as the shape must: as many of its inputs, weights
and results. The bench leaves the memory of those as it leaves the kernel's: inputs where the kernel
before would have left them, weights evicted, results evicted from the size of L2 on. So the loops
and the kernel meet the same caches. Peak, loops and kernels are visited in turn by one process.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from networks import NAMES, network

from fissile.cost.model import demanded, flops
from fissile.ir.graph import Graph, Node, Value
from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import kind_in_kernel
from fissile.kernels.candidate import Candidate, Kernel, Param
from fissile.kernels.region import Region
from fissile.onnx.load import load
from fissile.targets.cpu.harness import CpuBench
from fissile.targets.cpu.implementations import BY_NAME
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.target import Cpu
from fissile.targets.cpu.toolchain import find

ROUNDS, CHAINS = 4000, 12  # of the loop that measures the peak
GROUP = 12  # shapes of one process
ARITHMETIC, MEMORY = "arithmetic", "memory"  # what a kernel is held against


@dataclass(frozen=True)
class Shape:
    """One kernel shape of a network: the regions that have it, and the candidates for one of
    them."""

    title: str
    limit: str
    count: int
    flops: float
    floats: tuple[int, int, int]  # of inputs and weights, which are read, and of results
    kernels: tuple[tuple[str, Kernel], ...]  # (implementation and layouts, kernel)

    @property
    def mover(self) -> tuple[str, Kernel]:
        """What reads and writes as much and does nothing else."""
        return _mover(*self.floats)


@dataclass(frozen=True)
class Row:
    """`share` of the limit. us: of one kernel; `count` of them stand in the network."""

    network: str
    title: str
    limit: str
    how: str
    count: int
    us: float
    gflops: float
    share: float

    @property
    def work(self) -> float:
        """GFLOP of the network, where arithmetic is the limit; else us at the limit."""
        if self.limit == ARITHMETIC:
            return self.count * self.us * self.gflops * 1e-3
        return self.count * self.us * self.share


# ---------------------------------------------------------------- shapes


def shapes(graph: Graph, threads: int = 1) -> list[Shape]:
    """The distinct shapes, those of most work first."""
    cpu = Cpu(graph, threads=threads)
    regions = [_region(graph, n) for n in graph.primitives if is_anchor(n)]
    count = Counter(r.signature for r in regions)
    found = [_shape(cpu, r, count[r.signature]) for r in {r.signature: r for r in regions}.values()]
    return sorted((s for s in found if s.kernels), key=lambda s: -s.flops * s.count)


def is_anchor(node: Node) -> bool:
    return kind_in_kernel(node) in (Kind.LINEAR, Kind.WINDOW)


def _region(graph: Graph, node: Node) -> Region:
    """A node with its pad and its bias."""
    nodes, y = [node], node.value
    before = node.inputs[0].node
    if before.prim == "pad" and before.attrs["mode"] == "constant":
        nodes.insert(0, before)
    users = graph.users.get(y, ())
    if len(users) == 1 and users[0].prim == "add" and y not in graph.outputs:
        bias = [v for v in users[0].inputs if v is not y]
        if bias and bias[0].is_constant:
            nodes, y = [*nodes, users[0]], users[0].value
    return Region(tuple(nodes), (y,))


def _shape(cpu: Cpu, region: Region, count: int) -> Shape:
    anchor = next(n for n in region.nodes if is_anchor(n))
    kernels: list[tuple[str, Kernel]] = []
    for c in cpu.implementations(region):
        kernel = cpu.kernel(c)
        if c.impl != "loops" and not BY_NAME[c.impl].rival and isinstance(kernel, Kernel):
            kernels.append((how_of(c), kernel))
    moved = _floats(region)
    grouped = anchor.prim == "conv" and anchor.attrs["groups"] > 1
    limit = MEMORY if grouped or kind(anchor) is Kind.WINDOW else ARITHMETIC
    if limit == ARITHMETIC and flops(anchor) < 8 * 4 * sum(moved):  # a row times a matrix
        limit = MEMORY
    return Shape(title_of(anchor), limit, count, flops(anchor), moved, tuple(kernels))


def _floats(region: Region) -> tuple[int, int, int]:
    """What any kernel must read of tensors and of weights, and write."""
    share = demanded(region)

    def read(values: Sequence[Value]) -> int:
        return round(sum(share[v] * v.type.numel for v in values))

    written = sum(v.type.numel for v in region.outputs)
    return read(region.tensors), read(region.parameters), written


def how_of(c: Candidate) -> str:
    def mark(v: Value, first: bool) -> str:
        return "f" if first or v.rank < 3 else "l"

    marks = [mark(t.value, t.layout.is_row_major) for t in (*c.needs, *c.gives)]
    return f"{c.impl}:{''.join(marks)}" + "".join(f" {k}={v}" for k, v in c.params)


def title_of(n: Node) -> str:
    y = n.value.shape
    if n.prim == "contract":
        a, b = ("x".join(map(str, v.shape)) for v in n.inputs)
        return f"{n.attrs['spec']} {a}, {b}"
    window = n.inputs[1].shape[2:] if n.prim == "conv" else n.attrs["kernel"]
    stride, groups = n.attrs["strides"][0], n.attrs.get("groups", 1)
    name = n.prim if groups == 1 else "depthwise"
    text = f"{name} {'x'.join(map(str, window))} {n.inputs[0].shape[1]}->{y[1]} at "
    return text + "x".join(map(str, y[2:])) + (f" s{stride}" if stride > 1 else "")


# ---------------------------------------------------------------- limits, as kernels beside others


def _peak_kernel() -> tuple[str, Kernel]:
    source = f"""static void k_peak(float* y0, char* scratch, int64_t begin, int64_t end) {{
  vf c[{CHAINS}], a = splat(1.0f), b = splat(0.0f);
  asm volatile("" : "+x"(a), "+x"(b));
  for (int i = 0; i < {CHAINS}; ++i) c[i] = b + float(i);
  for (int64_t k = 0; k < {ROUNDS}; ++k)
#pragma GCC unroll 16
    for (int i = 0; i < {CHAINS}; ++i) c[i] = native_fma(c[i], a, b);
  vf sum = b;
  for (int i = 0; i < {CHAINS}; ++i) sum += c[i];
  store(y0, sum);
}}
"""
    return "peak", Kernel("k_peak", source, (Param("y0", "float*", "give", 0, 16),), 1, 64)


def _mover(inputs: int, weights: int, results: int) -> tuple[str, Kernel]:
    """Reads so many floats of inputs and of weights and writes so many of results, each from its
    first to its last, in steps of all three."""
    sizes = [n // 64 * 64 for n in (inputs, weights, results)]
    unit = next(u for u in (4096, 1024, 256, 64) if max(sizes) >= 4 * u or u == 64)
    steps = max(1, max(sizes) // unit)
    name = f"k_move_{'_'.join(map(str, sizes))}"
    source = f"""static void {name}(const float* __restrict x0, const float* __restrict w0, float* __restrict y0, char* scratch, int64_t begin, int64_t end) {{
  const auto part = [](int64_t lines, int64_t t) {{ return lines * t / {steps} * 64; }};
  vf s[4];
  for (vf& v : s) v = splat(0.0f);
  const auto read = [&](const float* p, int64_t n) {{
    for (int64_t i = 0; i < n; i += 64)
#pragma GCC unroll 16
      for (int j = 0; j < 64 / VL; ++j) s[j % 4] = native_max(load<vf>(p + i + j * VL), s[j % 4]);
  }};
  for (int64_t t = begin; t < end; ++t) {{
    read(x0 + part({sizes[0] // 64}, t), part({sizes[0] // 64}, t + 1) - part({sizes[0] // 64}, t));
    read(w0 + part({sizes[1] // 64}, t), part({sizes[1] // 64}, t + 1) - part({sizes[1] // 64}, t));
    for (int64_t i = part({sizes[2] // 64}, t); i < part({sizes[2] // 64}, t + 1); i += 64)
#pragma GCC unroll 16
      for (int j = 0; j < 64 / VL; ++j) store(y0 + i + j * VL, s[j % 4]);
  }}
  if (begin < end) store(y0, s[0] + s[1] + s[2] + s[3]);
}}
"""  # noqa: E501
    params = tuple(
        Param(name, ctype, role, 0, max(64, n))
        for (name, ctype, role), n in zip(_POINTERS, sizes, strict=True)
    )
    return name, Kernel(name, source, params, steps, 64)


_POINTERS = (
    ("x0", "const float*", "need"),
    ("w0", "const float*", "constant"),
    ("y0", "float*", "give"),
)


# ---------------------------------------------------------------- measuring


def rows(name: str, graph: Graph, only: str = "", threads: int = 1) -> Iterator[Row]:
    """The table of one network."""
    found = [s for s in shapes(graph, threads) if only in s.title]
    for group in groups(found):
        bench = CpuBench(find(), threads, jobs=1)
        yield from judged(name, group, bench_times(bench, group), bench, threads)


def groups(found: Sequence[Shape]) -> Iterator[list[Shape]]:
    """As many shapes as one process takes."""
    group: list[Shape] = []
    for shape in found:
        if group and sum(len(s.kernels) + 1 for s in (*group, shape)) > GROUP + 7:
            yield group
            group = []
        group.append(shape)
    if group:
        yield group


def keyed(group: Sequence[Shape]) -> list[tuple[str, Kernel]]:
    """The kernels of a group, and its limits."""
    movers = dict(s.mover for s in group if s.limit == MEMORY)
    own = {k.name: (k.name, k) for s in group for _, k in s.kernels}
    return [_peak_kernel(), *movers.items(), *own.values()]


def bench_times(bench: CpuBench, group: Sequence[Shape]) -> dict[str, float]:
    timings = bench.time(keyed(group))
    return {key: t.us for key, t in timings.items() if t.us}


def judged(
    network: str, group: Sequence[Shape], us: dict[str, float], bench: CpuBench, threads: int
) -> Iterator[Row]:
    lanes = this_machine().vl
    peak = 2.0 * lanes * CHAINS * ROUNDS / us["peak"] * 1e-3 * threads
    for s in group:
        timed = [(us[k.name], how) for how, k in s.kernels if k.name in us]
        if not timed:
            continue
        least, how = min(timed)
        at_peak = s.flops / peak * 1e-3
        bound = max(at_peak, us[s.mover[0]]) if s.limit == MEMORY else at_peak
        gflops = s.flops / least * 1e-3
        yield Row(network, s.title, s.limit, how, s.count, least, gflops, bound / least)


def above(found: Sequence[Row], limit: str, bar: float) -> float:
    """The share of the work under this limit that is done at `bar` of it or better."""
    mine = [r for r in found if r.limit == limit]
    whole = sum(r.work for r in mine)
    return sum(r.work for r in mine if r.share >= bar) / whole if whole else 1.0


def _print(found: Sequence[Row], bars: dict[str, float]) -> None:
    for limit, bar in bars.items():
        mine = sorted((r for r in found if r.limit == limit), key=lambda r: -r.work / r.share)
        if not mine:
            continue
        share = above(mine, limit, bar)
        print(f"\n{mine[0].network}, {limit}: {share:.0%} of the work at {bar:.0%} or better")
        for r in mine:
            print(f"  {r.share:5.2f} {r.us:9.1f} us x{r.count:<3d} {r.gflops:6.1f}  "
                  f"{r.title}  [{r.how}]")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("networks", nargs="*", default=list(NAMES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bar", type=float, default=0.85)
    parser.add_argument("--only", default="", help="shapes whose title contains this")
    args = parser.parse_args()
    bars, every = {ARITHMETIC: args.bar, MEMORY: 0.8}, []
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(name)
            if not path.exists():
                path = Path(folder) / f"{name}.onnx"
                path.write_bytes(network(name).SerializeToString())
            found = list(rows(path.stem, load(path), args.only, args.threads))
        _print(found, bars)
        every += found
    print()
    for limit, bar in bars.items():
        print(f"all, {limit}: {above(every, limit, bar):.0%} of the work at {bar:.0%} or better")


if __name__ == "__main__":
    main()
