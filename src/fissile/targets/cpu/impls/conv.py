"""Convolutions with constant weights, with what stands before and after them.

    y[n, m, h, w] = sum_{c, i, j} x[n, c, sh h + dh i, sw w + dw j] k[m, c, i, j]

Channels-last: an implicit contraction over runs of KW * C elements; a tile is PY x PX pixels and NV
vectors of output channels, the weights lie in panels. Channels-first: a tile is MR output channels
and NV vectors of columns. One channel per group: see `sliding`. The input is read in place, or a
band of its rows is filled with the prologue.
"""

from __future__ import annotations

from collections.abc import Iterator

from fissile.kernels.candidate import Candidate, Kernel, No, Packing
from fissile.kernels.region import is_scalar
from fissile.targets.cpu.impls.ahead import LEAST_TERMS, fetch
from fissile.targets.cpu.impls.anchor import (
    CHANNELS,
    Epilogue,
    Slide,
    block_size,
    epilogue,
    find,
    lanes_of,
    slide,
)
from fissile.targets.cpu.impls.bands import Input, ranged, whole
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.impls.lines import block, plus
from fissile.targets.cpu.impls.moments import band_moments
from fissile.targets.cpu.impls.planes import DEPTHWISE
from fissile.targets.cpu.impls.shape import Shape, columns_shape, pixels_shape
from fissile.targets.cpu.impls.sliding import crowds, per_channel
from fissile.targets.cpu.impls.tiled import (
    COLUMNS_OF,
    blocks,
    column_blocks,
    done,
    each_vector,
    share_of,
)
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.targets.cpu.packing import pack
from fissile.tiles.expr import Illegal


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one convolution over one or two axes. f32 only. `params` may hold
    lanes (channels or columns) and px, py, nv, rows, splits, copies."""
    try:
        node = find(candidate, ("conv",))
        k, groups = node.inputs[1], node.attrs["groups"]
        if not k.is_constant:
            raise Illegal("the weights are computed at run time")
        if size := block_size(candidate):
            _check_blocks(size, machine, groups, k.shape[0])
        s = slide(node, lanes_of(candidate, node), k.shape[2:], k.shape[0], groups)
        if 1 < s.groups == s.c == s.m:
            return per_channel(candidate, machine, s, DEPTHWISE)
        return (_last if s.lanes == CHANNELS else _first)(candidate, machine, s.dense)
    except Illegal as reason:
        return reason.no


def variants(candidate: Candidate, machine: Machine) -> Iterator[Params]:
    """As it is; and one channel per group from a copy of its rows, where these crowd the cache."""
    yield ()
    try:
        node = find(candidate, ("conv",))
        k, groups = node.inputs[1], node.attrs["groups"]
        s = slide(node, lanes_of(candidate, node), k.shape[2:], k.shape[0], groups)
    except Illegal:
        return
    if 1 < s.groups == s.c == s.m and crowds(s) and not candidate.gives[0].layout.tile:
        yield (("copies", True),)


def _check_blocks(size: int, machine: Machine, groups: int, m: int) -> None:
    if size != machine.vl:
        raise Illegal(f"channels in blocks of {size}, vectors of {machine.vl}")
    if groups not in (1, m):
        raise Illegal(f"{groups} groups, channels in blocks of {size}")


# ---------------------------------------------------------------- channels-last


def _last(candidate: Candidate, machine: Machine, s: Slide) -> Kernel:
    """A tile: a band and a share of the panels; every panel passes over the band's pixels."""
    writer, tiling = Writer(candidate), ranged(candidate, s)
    asked = {**candidate.param, "py": 1, "rows": s.oh, "splits": 1} if tiling else candidate.param
    shape = pixels_shape(s, machine, asked)
    split, tiling, c = shape.lanes, tiling or shape.tiling, s.c // s.groups
    panels, size = s.groups * split.count, c * s.taps * split.width
    packing = Packing("conv_panels", (s.groups, split.width, machine.vl))
    k = _weights(writer, s, packing, panels * size)
    source = whole(candidate, writer, s, tiling.rows, tile=(shape.py, shape.px))
    head = [
        "constexpr int NV = vectors.value, N = channels.value;",
        f"const float* k = {plus(k, (size, 'j'))};",
        f"const int64_t m0 = {_first_channel(s.m // s.groups, split.count, split.width)};",
    ]
    if s.groups > 1:
        group = "j" if split.count == 1 else f"(j / {split.count})"
        head.append(f"const float* x = {plus('in', (c, group))};")
    panel = block(
        "const auto panel = [&](auto vectors, auto channels, int64_t j) {",
        [
            *head,
            *_rows(s, shape, source, epilogue(candidate, writer, s)),
            *band_moments(candidate, writer, s, tiling),
        ],
        "};",
    )
    index = "j" if s.groups == 1 else f"j % {split.count}"
    loop = block(f"{share_of('j', panels, tiling)} {{", blocks("panel", split, index, "j"))
    return done(writer, machine, tiling, [*source.lines, *panel, *loop])


def _first_channel(per_group: int, count: int, width: int) -> str:
    """The first output channel of panel j."""
    if count == 1:
        return plus((per_group, "j"))
    if per_group == count * width:
        return plus((width, "j"))
    return plus((per_group, f"(j / {count})"), (width, f"(j % {count})"))


def _rows(s: Slide, shape: Shape, source: Input, end: Epilogue) -> list[str]:
    """The pixels of a band, for one panel."""
    where = "const int64_t h = top, w = left + p, m = m0 + v * VL;"
    if shape.py > 1:
        where = "const int64_t h = top + p / PX, w = left + p % PX, m = m0 + v * VL;"
    columns = block(
        f"for_rows<{shape.px}, {s.ow}>([&](auto px, int64_t left) {{",
        [
            "constexpr int PX = px.value;",
            "vf c[PY * PX][NV];",
            "zero(c);",
            *_fetch(s, "PY * PX, NV", where, end),
            _conv_tile(s, source),
            *each_vector("N", end, [where]),
        ],
        "});",
    )
    if shape.py == 1:
        head = "for (int64_t top = h0; top < h1; ++top) {"
        return block(head, ["constexpr int PY = 1;", *columns])
    return block(
        f"for_rows<{shape.py}, {shape.tiling.rows}>([&](auto py, int64_t row) {{",
        ["constexpr int PY = py.value;", "const int64_t top = h0 + row;", *columns],
        "});",
    )


def _fetch(s: Slide, tile: str, where: str, end: Epilogue) -> list[str]:
    terms = s.c // s.groups * s.taps
    return fetch(tile, "int p, int v", [where], end.far) if terms >= LEAST_TERMS else []


def _conv_tile(s: Slide, source: Input) -> str:
    """The micro-kernel. Where the taps of a kernel row are neighbours they are one run."""
    c, x = s.c // s.groups, "x" if s.groups > 1 else "in"
    line, pixel = source.row * s.sh, source.pixel * s.sw
    if source.block:  # one tap: the runs are the blocks of channels
        corner = plus("in", (line, "(top - h0)"), (pixel, "left"))
        steps = f"{pixel}, {line}, {source.plane}, {c // source.block}, {source.block}"
        return f"conv_tile<PX, NV, PY>(c, {corner}, {steps}, k);"
    corner = plus(x, (line, "(top - h0)"), (pixel, "left"))
    steps = f"{pixel}, {line}, {source.row * s.dh}"
    if s.kw == 1 or (s.dw == 1 and source.pixel == c):
        return f"conv_tile<PX, NV, PY>(c, {corner}, {steps}, {s.kh}, {s.kw * c}, k);"
    steps += f", {source.pixel * s.dw}"
    return f"conv_tile_taps<PX, NV, PY>(c, {corner}, {steps}, {s.kh}, {s.kw}, {c}, k);"


# ---------------------------------------------------------------- channels-first


def _first(candidate: Candidate, machine: Machine, s: Slide) -> Kernel:
    """A tile: a band and a share of the channels; every block of columns sees all of these."""
    writer, shape = Writer(candidate), columns_shape(s, machine, candidate.param)
    split, tiling = shape.lanes, ranged(candidate, s) or shape.tiling
    share = s.m // s.groups // tiling.splits  # output channels of a tile, in each group
    packing, elements = Packing("conv_blocks", (share, shape.px)), s.m * s.c // s.groups * s.taps
    k = _weights(writer, s, packing, elements)
    exact = s.sw == 1 and s.ow % machine.vl == 0
    source = whole(candidate, writer, s, tiling.rows, 0 if exact else split.width * (s.sw + 1))
    start = plus("first", (share if tiling.splits > 1 else 0, "split"))
    if s.groups > 1:
        start = plus(start, (s.m // s.groups, "g"))
    where, end = (
        "const int64_t h = top, w = left + v * VL, m = m0 + p;",
        epilogue(candidate, writer, s),
    )
    if shape.py > 1:
        where = "const int64_t h = top + p / MR, w = left + v * VL, m = m0 + p % MR;"
    channels = block(
        f"for_rows<{shape.px}, {share}>([&](auto mr, int64_t first) {{",
        [
            "constexpr int MR = mr.value;",
            f"const int64_t m0 = {start};",
            "vf c[PY * MR][NV];",
            "zero(c);",
            *_fetch(s, "PY * MR, NV", where, end),
            _conv_first(s, source, k),
            *each_vector("N", end, [where]),
        ],
        "});",
    )
    if s.groups > 1:
        channels = block(f"for (int64_t g = 0; g < {s.groups}; ++g) {{", channels)
    head = "constexpr int NV = vectors.value, N = width.value, PY = rows.value;"
    columns = block(f"const auto columns = [&]({COLUMNS_OF}) {{", [head, *channels], "};")
    body = [*source.lines, *columns, *column_blocks(s, split, tiling, shape.py)]
    return done(writer, machine, tiling, body)


def _conv_first(s: Slide, source: Input, k: str) -> str:
    c = s.c // s.groups
    x = plus("in", (source.row * s.sh, "(top - h0)"), (s.sw, "left"))
    if s.groups > 1:
        x = plus(x, (source.plane * c, "g"))
    steps = f"{c}, {source.plane}, {s.kh}, {source.row * s.dh}, {s.kw}, {s.dw}"
    return f"conv_first<MR, NV, {s.sw}, PY>(c, {x}, {steps}, {plus(k, (c * s.taps, 'm0'))});"


def _weights(writer: Writer, s: Slide, packing: Packing, elements: int) -> str:
    """A pointer to the packed weights. A single number stands in the code."""
    value = s.node.inputs[1]
    if not is_scalar(value):
        return writer.packed(value, packing.packer, packing.args, elements)
    numbers = ", ".join(f"{x!r}f" for x in pack(value.array, packing).tolist())
    writer.scratch_lines.append(f"const float k0[] = {{{numbers}}};")
    return "k0"
