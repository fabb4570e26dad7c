"""Statistics of what a convolution gives, taken while it is near, channels innermost.

    work[n][band][base, mean - base, squares][m]  <-  tile (n, band, some m)
    mean, variance, maths on them                 <-  work, when all tiles are done
                                                                        (kernels/statistics)

A tile has its band of results in the first caches when it takes their moments; which tiles run
where changes no bit. (runtime/moments.h)
"""

from __future__ import annotations

from collections.abc import Sequence

from fissile.ir.types import F32
from fissile.kernels.candidate import Candidate
from fissile.kernels.statistics import Statistics, statistics_of
from fissile.targets.cpu.impls.anchor import CHANNELS, Slide, address
from fissile.targets.cpu.impls.bands import Tiling
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.writer import Writer, strides_of
from fissile.tiles.expr import Builder, Illegal, Register, forward
from fissile.tiles.index import Index, Var, const, var
from fissile.tiles.lanes import fits_lanes
from fissile.tiles.nest import Decided, Env, nest
from fissile.tiles.place import place_of
from fissile.tiles.tree import Do, Store

LINE = 16  # floats in a cache line


def band_moments(candidate: Candidate, writer: Writer, s: Slide, tiling: Tiling) -> list[str]:
    """Lines that end the work of a panel on its band, and that close the kernel; none where the
    region takes no statistics. They use N, m0, n, h0 and h1. Raises Illegal."""
    stats = statistics_of(candidate.region)
    if stats is None:
        return []
    if stats.of.shape != s.node.value.shape or stats.axes != tuple(range(2, stats.of.rank)):
        raise Illegal("statistics over other axes than those of the map")
    row, pixel, base = _steps(candidate, stats, s)
    channels = -(-s.m // LINE) * LINE
    part = 3 * channels
    writer.work_elements = s.n * tiling.bands * part
    band = f"(h0 / {tiling.rows})" if tiling.bands > 1 else "0"
    image = part * tiling.bands if s.n > 1 else 0
    moments = plus("work", (image, "n"), (part if tiling.bands > 1 else 0, band), "m0")
    writer.closing = _closing(candidate, writer, stats, s, tiling, channels)
    return [
        f"band_moments<N>({moments}, {channels}, {base}, h1 - h0, {row}, {s.ow}, {pixel});",
    ]


def _steps(candidate: Candidate, stats: Statistics, s: Slide) -> tuple[int, int, str]:
    """Elements between rows and between pixels of the map, and where a band of a panel begins."""
    token = next(t for t in candidate.gives if t.value is stats.of)
    n, m, h, w = (
        Var(name, 0, extent - 1)
        for name, extent in (("n", s.n), ("m", s.m), ("h", s.oh), ("w", s.ow))
    )
    here = s.point(var(n), var(m), var(h), var(w))
    if forward(candidate.region, s.node.value, here).get(stats.of) != here:
        raise Illegal("statistics of something else than a map of the convolution")
    at = address(here, strides_of(token))
    if s.lanes != CHANNELS or (s.m > 1 and at.coefficient(m) != 1):
        raise Illegal("statistics are taken with channels innermost")
    image, row, pixel = (at.coefficient(v) for v in (n, h, w))
    pointer = f"y{candidate.gives.index(token)}"
    return row, pixel, plus(pointer, (image if s.n > 1 else 0, "n"), (row, "h0"), "m0")


def _closing(
    candidate: Candidate, writer: Writer, stats: Statistics, s: Slide, tiling: Tiling, channels: int
) -> list[str]:
    """Combine the bands, and compute what is given."""
    n, m = Var("n", 0, s.n - 1), Var("m", 0, s.m - 1)
    here = (var(n), var(m), *[const(0)] * (stats.of.rank - 2))
    full, rest = (rows * s.ow for rows in (tiling.rows, (s.oh - 1) % tiling.rows + 1))
    image = 3 * channels * tiling.bands if s.n > 1 else 0
    part = plus("work", (image, "n"), "m")
    arguments = f"l, {part}, {tiling.bands}, {channels}, {full}, {rest}"
    lines = block(
        f"combined_moments({arguments}, [&](vf mean, vf variance) FISSILE_BODY {{",
        _given(candidate, writer, stats, here, m),
        "});",
    )
    lines = block(f"lanes({s.m}, [&](auto l, int64_t m) FISSILE_BODY {{", lines, "});")
    head = f"for (int64_t n = 0; n < {s.n}; ++n) {{"
    return [f"  {line}" for line in (block(head, lines) if s.n > 1 else lines)]


def _given(
    candidate: Candidate, writer: Writer, stats: Statistics, here: tuple[Index, ...], m: Var
) -> Sequence[str]:
    """Stores of one vector of every statistic."""
    region = candidate.region
    points = {**forward(region, stats.mean, here), **forward(region, stats.variance, here)}
    leaves = {
        **writer.leaves(),
        stats.mean: lambda point: Register("mean", F32, lanes=True),
        stats.variance: lambda point: Register("variance", F32, lanes=True),
    }
    given = [(i, t) for i, t in enumerate(candidate.gives) if t.value is not stats.of]
    if any(t.value not in points for _, t in given):
        raise Illegal("an output is neither the map nor a statistic of it")

    def make(env: Env, decided: Decided) -> list[Store]:
        builder = Builder(leaves, decided)
        return [
            Store(f"y{i}", place_of(t, at := points[t.value]), builder.at(t.value, at))
            for i, t in given
        ]

    trees = nest([], make, lanes=False, outer=m)
    stores = [st for tree in trees if isinstance(tree, Do) for st in tree.statements]
    if not fits_lanes([st for st in stores if isinstance(st, Store)], m):
        raise Illegal("the statistics of neighbouring channels are no neighbours")
    return [*writer.printer.trees(trees, m, indent=0), "(void)mean, (void)variance;"]
