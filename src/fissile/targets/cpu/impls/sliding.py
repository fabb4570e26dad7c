"""Windows that stay in their channel: depthwise convolution, maximum and sum.

    y[n, m, h, w] = fold_{i, j} x[n, m, sh h + dh i, sw w + dw j] (* k[m, i, j])

Channels-last: a tile is PX pixels of one row and one vector of channels, which loads every input
vector once. A strip is such a tile of all rows of a band, for a few vectors side by side, so that
the input rows that windows share stay in the first cache. Where the prologue is no more than a pad
with the neutral element nothing is copied: windows are cut at the border instead. Channels-first:
see `planes`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fissile.ir.layout import Token
from fissile.kernels.candidate import Candidate, Kernel
from fissile.targets.cpu.impls.anchor import CHANNELS, Epilogue, Slide, block_size, epilogue
from fissile.targets.cpu.impls.bands import Input, Steps, Tiling, ranged, steps_of, whole
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.planes import (
    DEPTHWISE,
    LEAST,
    TILES,
    Fold,
    by_planes,
    divisor,
    rows_of,
)
from fissile.targets.cpu.impls.shape import LaneSplit, cover
from fissile.targets.cpu.impls.tiled import blocks, done, each_vector, share_of
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.tiles.index import substitute, text, var

SIDE_BY_SIDE = 144  # channels of a strip: its rows are then as long as memory and prefetchers like
RESULTS = 1008  # in a row of a strip: what its windows read stays in the first cache
WIDEST, NARROW = 14, 4  # pixels of a tile; of one where pixels share sets of the first cache
CROWDED = 256  # floats between pixels, of which many share a set
BLOCK = 2  # rows, and pixels of each, of a tile that walks the map in its order
ROOM = 0.6  # of the second cache, for the rows of such tiles and of the next
AHEAD = 2  # rows after which what is fetched for results is written
LOW = 32  # maps of fewer rows are shared out by channels


def per_channel(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    """Raises Illegal."""
    if s.lanes == CHANNELS and candidate.gives[0].layout.tile:
        s = s.in_blocks(block_size(candidate))
    if s.lanes == CHANNELS:
        return _by_pixels(candidate, machine, s, fold)
    return by_planes(candidate, machine, s, fold)


@dataclass(frozen=True)
class Border:
    """The input without its pad: `top` rows and `left` columns are missing before it, h x w
    exist."""

    token: Token
    steps: Steps
    top: int
    left: int
    h: int
    w: int


@dataclass(frozen=True)
class Strips:
    """`count` strips of `px` output columns, from `first` on; `before` columns are missing at the
    left of their windows, `after` at the right."""

    first: int
    count: int
    px: int
    before: int = 0
    after: int = 0


@dataclass(frozen=True)
class Walk:
    """What the lines of a kernel are made of. `kernel` points to weights [tap][width]."""

    s: Slide
    fold: Fold
    source: Input
    end: Epilogue
    kernel: str
    width: int
    fetches: Sequence[str] = ()


def _by_pixels(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> Kernel:
    writer, split, border = Writer(candidate), _vectors(candidate, machine, s), None
    px = _pixels(candidate, machine, s, fold, split.width)
    if not candidate.param.get("copies"):
        border = _border(candidate, s, fold)
    if border and _walks(candidate, machine, s, fold) and (found := _strips(s, BLOCK, border)):
        return _in_order(candidate, machine, s, border, found)
    strips = _strips(s, px, border)
    if strips is None:
        border, strips = None, _strips(s, px, None)
    assert strips is not None
    ragged = s.c % machine.vl != 0  # the last vector of weights, and of a copy, is whole
    tiling = ranged(candidate, s) or _tiling(candidate, machine, s, split, copies=border is None)
    kernel, width = "", -(-s.m * s.blocks // machine.vl) * machine.vl
    if fold is DEPTHWISE:
        packing = ("depthwise_taps", (machine.vl,))
        kernel = writer.packed(s.node.inputs[1], *packing, s.taps * width)
        if s.blocks > 1:
            kernel = plus(kernel, (s.m, f"(n % {s.blocks})"))
    if border:
        source = _unpadded(candidate, s, border)
    else:
        slack = split.width if ragged else 0
        source = whole(candidate, writer, s, tiling.rows, slack, tile=(s.kh, px * s.sw + s.kw - 1))
    end = epilogue(candidate, writer, s)
    fetches = [] if tiling.ranged else _fetches(candidate, machine, end)
    if border and not tiling.ranged:
        fetches += _fetches_input(machine, s, source)
    walk = Walk(s, fold, source, end, kernel, width, fetches)
    panel = block(
        "const auto panel = [&](auto vectors, auto channels, int64_t m0) {",
        [line for part in strips for line in _call(part)],
        "};",
    )
    calls = blocks("panel", split, "j", plus((split.width, "j")))
    panels = block(f"{share_of('j', split.count, tiling)} {{", calls)
    body = [*source.lines, *_strip(walk, border), *panel, *panels]
    return done(writer, machine, tiling, body)


def _walks(candidate: Candidate, machine: Machine, s: Slide, fold: Fold) -> bool:
    """Are the results so large that they come from afar, do the rows of a block stay in the second
    cache until the next, and fit all the weights of a vector in the registers?"""
    rows = ((BLOCK - 1) * s.sh + s.reach_h) * s.w + 2 * BLOCK * s.ow
    near = 4 * rows * s.c * s.blocks <= ROOM * machine.l2_bytes
    far = 4 * sum(t.elements for t in candidate.gives) >= machine.l2_bytes
    fits = s.taps + BLOCK * BLOCK + 2 <= machine.registers
    wide = s.kh > 1 and s.kw > 1 and min(s.oh, s.ow) >= BLOCK
    return fold is DEPTHWISE and far and near and fits and wide and ranged(candidate, s) is None


def _in_order(
    candidate: Candidate, machine: Machine, s: Slide, border: Border, strips: Sequence[Strips]
) -> Kernel:
    """Tiles of BLOCK rows and pixels, all channels of one before the next, so that memory is read
    and written nearly in its order: strips of many pixels wait for it twice as long."""
    writer, bands = Writer(candidate), -(-TILES // s.n)
    rows = candidate.param.get("rows") or -(-s.oh // (bands * BLOCK)) * BLOCK
    tiling = Tiling(s.n, s.oh, min(rows, s.oh))
    width = -(-s.m * s.blocks // machine.vl) * machine.vl
    k = writer.packed(s.node.inputs[1], "depthwise_taps", (machine.vl,), s.taps * width)
    if s.blocks > 1:
        k = plus(k, (s.m, f"(n % {s.blocks})"))
    source, end = _unpadded(candidate, s, border), epilogue(candidate, writer, s)
    vector = _square(candidate, s, border, source, end, f"{plus(k, 'm')}, {width}")
    across = [
        line.replace("channels", "rows").replace("m0", "top") for p in strips for line in _call(p)
    ]
    down = [
        "int64_t top = h0;",
        f"for (; top + {BLOCK} <= h1; top += {BLOCK}) across(Int<{BLOCK}>(), top);",
        "if (top < h1) across(Int<1>(), top);",
    ]
    body = [
        *source.lines,
        *_strip_of_rows(machine, s, border, source, vector),
        *block("const auto across = [&](auto rows, int64_t top) {", across, "};"),
        *down,
    ]
    return done(writer, machine, tiling, body)


def _square(
    candidate: Candidate, s: Slide, b: Border, x: Input, end: Epilogue, weights: str
) -> list[str]:
    """One vector of PY rows and PX pixels; `edge` is 1 where rows of its windows are missing."""
    below = max(0, (s.oh - 1) * s.sh + s.reach_h - b.top - b.h)
    where = "const int64_t h = top + p / PX, w = left + p % PX;"
    sizes = f"{s.kh}, {s.kw}, {s.sh}, {s.sw}, {s.dh}, {s.dw}"
    missing = f"edge.value * {b.top}, edge.value * {below}, before.value, after.value"
    asks = [where]
    for y, at in end.stored:
        later = substitute(at, lambda v: var(v) + BLOCK if v.name == "h" else None)
        asks.append(f"fetch_later({plus(y, f'({text(later)})')});")
        asks.append(f"__builtin_prefetch({plus(y, f'({text(at)})')}, 1);")
    return block(
        "const auto vector = [&](auto edge, auto lanes, int64_t m) FISSILE_BODY {",
        [
            "vf c[PY * PX][1];",
            "zero(c);",
            "#pragma GCC unroll 32",
            *block("for (int p = 0; p < PY * PX; p++) {", asks),
            f"slide_rows<{DEPTHWISE.struct}, {sizes}, {missing}, lanes.value, PY, PX>(",
            f"    c, x + m, i0, i1, {x.row}, {x.pixel}, {weights});",
            *each_vector("lanes.value", end, [where]),
        ],
        "};",
    )


def _strip_of_rows(
    machine: Machine, s: Slide, b: Border, x: Input, vector: Sequence[str]
) -> list[str]:
    """The vectors of PY rows from `top` on and PX columns from `left` on; rows i0 to i1 of what
    their windows span exist."""
    row = plus((s.sh, "top"), -b.top)
    column = plus((s.sw, "left"), -b.left, "before.value")
    rest = s.m % machine.vl
    stop = s.m - rest
    loops = [f"for (int64_t m = 0; m < {stop}; m += VL) vector(edge, Int<VL>(), m);"]
    if rest:
        loops.append(f"vector(edge, Int<{rest}>(), {stop});")
    head = "const auto strip = [&](auto px, auto before, auto after, auto rows, int64_t left, "
    return block(
        f"{head}int64_t top) FISSILE_BODY {{",
        [
            "constexpr int PX = px.value, PY = rows.value;",
            f"const int64_t i0 = {plus(b.top, (-s.sh, 'top'))};",
            f"const int64_t i1 = {plus(b.top + b.h, (-s.sh, 'top'))};",
            f"const float* x = {plus('in', (x.row, f'({row})'), (x.pixel, f'({column})'))};",
            *vector,
            *block("const auto vectors = [&](auto edge) FISSILE_BODY {", loops, "};"),
            f"if (i0 <= 0 && i1 >= {plus((s.sh, '(PY - 1)'), s.reach_h)}) vectors(Int<0>());",
            "else vectors(Int<1>());",
        ],
        "};",
    )


def crowds(s: Slide) -> bool:
    """Do pixels that lie a power of two apart share few sets of the caches, so that a copy of the
    rows, with its pixels elsewhere, may pay?"""
    return s.lanes == CHANNELS and s.c % CROWDED == 0 and s.taps > 1


def _pixels(candidate: Candidate, machine: Machine, s: Slide, fold: Fold, width: int) -> int:
    """Pixels of a tile: accumulators beside the weights of a kernel row and what is loaded, few
    where strips are wide."""
    if asked := candidate.param.get("px"):
        return asked
    room = machine.registers - 2 - (s.kw if fold is DEPTHWISE else 2)
    most = min(s.ow, WIDEST, max(room, machine.registers // 2), max(RESULTS // width, NARROW))
    return cover(s.ow, min(most, NARROW) if crowds(s) else most)[0][1]


def _vectors(candidate: Candidate, machine: Machine, s: Slide) -> LaneSplit:
    """Panels of up to `SIDE_BY_SIDE` channels, as even as can be."""
    vectors = -(-s.c // machine.vl)
    nv = candidate.param.get("nv") or -(-vectors // -(-s.c // SIDE_BY_SIDE))
    return LaneSplit(s.c, nv, machine.vl)


def _tiling(
    candidate: Candidate, machine: Machine, s: Slide, split: LaneSplit, copies: bool
) -> Tiling:
    """Shares of the channels where the map is low and nothing is copied; else bands."""
    if copies:
        small = 4 * s.h * s.w * s.c <= machine.l2_bytes // 2 // machine.threads
        rows = -(-s.oh // machine.threads) if small else rows_of(s, copies=True)
        return Tiling(s.n, s.oh, candidate.param.get("rows") or rows)
    splits = divisor(split.count, TILES) if s.oh <= LOW else 1
    bands = max(1, -(-TILES // (splits * s.n))) if s.oh * s.ow * s.m > LEAST else 1
    return Tiling(s.n, s.oh, candidate.param.get("rows") or -(-s.oh // bands), splits)


def _border(candidate: Candidate, s: Slide, fold: Fold) -> Border | None:
    """Where windows may be cut: a needed channels-last token, as it is or behind a neutral pad."""
    x, lo = s.x, (0,) * s.x.rank
    if x.node.prim == "pad" and x.node in candidate.region.members:
        a = x.node.attrs
        neutral = a["mode"] == "constant" and a["value"] == fold.neutral
        if not neutral or any(a["lo"][:2] + a["hi"][:2]):
            return None
        x, lo = x.node.inputs[0], a["lo"]
    token = next((t for t in candidate.needs if t.value is x), None)
    if token is None or (steps := steps_of(token, s)) is None or steps.block:
        return None
    w, left = (x.shape[3], lo[3]) if x.rank == 4 else (1, 0)
    return Border(token, steps, lo[2], left, x.shape[2], w)


def _strips(s: Slide, px: int, b: Border | None) -> list[Strips] | None:
    """Strips of equal code. None where a window that is cut at one side stands in no outermost
    strip, or holds nothing."""
    sizes = [size for count, size in cover(s.ow, px) for _ in range(count)]
    before = b.left if b else 0
    after = max(0, (s.ow - 1) * s.sw + (s.kw - 1) * s.dw + 1 - b.left - b.w) if b else 0
    reach = (s.kw - 1) * s.dw
    first, last = sizes[0], sizes[-1]
    if -(-before // s.sw) > first or -(-after // s.sw) > last:
        return None
    spans = [(first - 1) * s.sw + 1 + reach, (last - 1) * s.sw + 1 + reach]
    if min(before, after) and len(sizes) == 1 and before + after >= spans[0]:
        return None
    if before >= spans[0] or after >= spans[1]:
        return None
    found: list[Strips] = []
    left = 0
    for i, size in enumerate(sizes):
        edge = (before if i == 0 else 0, after if i == len(sizes) - 1 else 0)
        if found and (found[-1].px, found[-1].before, found[-1].after) == (size, *edge):
            found[-1] = replace(found[-1], count=found[-1].count + 1)
        else:
            found.append(Strips(left, 1, size, *edge))
        left += size
    return found


def _unpadded(candidate: Candidate, s: Slide, b: Border) -> Input:
    image = (b.steps.image if s.n > 1 else 0, "n")
    start = plus(f"x{candidate.needs.index(b.token)}", image)
    return Input([f"const float* in = {start};"], b.steps.row, b.steps.pixel, 1)


def _call(p: Strips) -> list[str]:
    kind = f"Int<{p.px}>(), Int<{p.before}>(), Int<{p.after}>(), channels"
    if p.count == 1:
        return [f"strip({kind}, {p.first}, m0);"]
    stop = p.first + p.count * p.px
    head = f"for (int64_t left = {p.first}; left < {stop}; left += {p.px})"
    return [f"{head} strip({kind}, left, m0);"]


def _strip(walk: Walk, b: Border | None) -> list[str]:
    """The strip of PX columns from `left` on and N channels from `first` on."""
    s, x, width = walk.s, walk.source, walk.width
    call = f"slide_last<{walk.fold.struct}, {s.kw}, {s.sw}, {s.dw}, before.value, after.value, "
    weights = f"k + m, {width}" if walk.kernel else "nullptr, 0"
    taps = "i1 - i0" if b else str(s.kh)
    vector = block(
        "const auto vector = [&](auto lanes, int64_t m) FISSILE_BODY {",
        [
            "vf c[PX][1];",
            walk.fold.start,
            *walk.fetches,
            f"{call}lanes.value>(c, x + m, {taps}, {x.row * s.dh}, {x.pixel}, {weights});",
            *each_vector("lanes.value", walk.end, ["const int64_t w = left + p;"]),
        ],
        "};",
    )
    rows = [
        *(_cut_rows(walk, b) if b else _band_rows(walk)),
        *vector,
        "for (int64_t m = first; m < first + N / VL * VL; m += VL) vector(Int<VL>(), m);",
        "if constexpr (N % VL != 0) vector(Int<N % VL>(), first + N / VL * VL);",
    ]
    head = "const auto strip = [&](auto px, auto before, auto after, auto channels, int64_t left, "
    return block(
        f"{head}int64_t first) {{",
        [
            "constexpr int PX = px.value, N = channels.value;",
            *block("for (int64_t h = h0; h < h1; ++h) {", rows),
        ],
        "};",
    )


def _fetches(candidate: Candidate, machine: Machine, end: Epilogue) -> list[str]:
    """Asks for the lines that a later row of the strip is stored to, where results are too large to
    lie in the second cache already: strips write them in no order that the processor foresees."""
    if 4 * sum(t.elements for t in candidate.gives) < machine.l2_bytes:
        return []
    later = [(y, substitute(at, lambda v: var(v) + AHEAD if v.name == "h" else None))
             for y, at in end.stored]  # fmt: skip
    lines = [f"fetch_later({plus(y, f'({text(at)})')});" for y, at in later]
    head = "for (int p = 0; p < PX; p++) {"
    return ["#pragma GCC unroll 32", *block(head, ["const int64_t w = left + p;", *lines])]


def _fetches_input(machine: Machine, s: Slide, x: Input) -> list[str]:
    """The same for the rows that a later row of the strip is the first to read."""
    if 4 * s.n * s.h * s.w * s.c * s.blocks < machine.l2_bytes or max(s.sh, s.sw, s.dh) > 1:
        return []
    at = plus("x", "m", (x.row, f"(i1 - i0 + {AHEAD})"), (x.pixel, "p"))
    return ["#pragma GCC unroll 32", f"for (int p = 0; p < PX; p++) fetch_later({at});"]


def _band_rows(walk: Walk) -> list[str]:
    """Where output row h reads in a band that holds the pad."""
    s, x = walk.s, walk.source
    where = plus("in", (x.row * s.sh, "(h - h0)"), (x.pixel * s.sw, "left"))
    weights = [f"const float* k = {walk.kernel};"] if walk.kernel else []
    return [f"const float* x = {where};", *weights]


def _cut_rows(walk: Walk, b: Border) -> list[str]:
    """Where output row h reads in the input itself: kernel rows i0 to i1 lie on it."""
    s, x = walk.s, walk.source
    row = plus((s.sh, "h"), -b.top, (s.dh, "i0"))
    column = plus((s.sw, "left"), -b.left, "before.value")
    lines = [
        f"const int64_t i0 = taps_before({plus(b.top, (-s.sh, 'h'))}, {s.dh}, {s.kh});",
        f"const int64_t i1 = taps_before({plus(b.top + b.h, (-s.sh, 'h'))}, {s.dh}, {s.kh});",
        f"const float* x = {plus('in', (x.row, f'({row})'), (x.pixel, f'({column})'))};",
    ]
    if walk.kernel:
        lines.append(f"const float* k = {plus(walk.kernel, (s.kw * walk.width, 'i0'))};")
    return lines
