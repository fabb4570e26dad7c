"""Convolutions with constant weights, with what stands before and after them.

    y[n, m, h, w] = sum_{c, i, j} x[n, c, h sh + i dh, w sw + j dw] k[m, c, i, j]

Channels-last: an implicit contraction over runs of KW * C elements; a tile is PY x PX pixels and NV vectors of
output channels, weights in panels. Channels-first: a tile is MR output channels and NV vectors of columns.
One channel per group: see `sliding`. The input is read in place, or a band of rows is filled with the prologue.
"""

from __future__ import annotations

from fissile.kernels.candidate import Candidate, Kernel, No, Packing
from fissile.kernels.region import is_scalar
from fissile.targets.cpu.impls.anchor import CHANNELS, Slide, block, epilogue, find, lanes_of, slide
from fissile.targets.cpu.impls.bands import Input, whole
from fissile.targets.cpu.impls.shape import Shape, columns_shape, pixels_shape
from fissile.targets.cpu.impls.sliding import DEPTHWISE, per_channel
from fissile.targets.cpu.impls.tiled import blocks, done, each_vector, share_of
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.targets.cpu.packing import pack
from fissile.tiles.expr import Illegal


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one convolution over one or two axes. f32 only. `params` may hold lanes
    (channels or columns) and px, py, nv, rows, splits."""
    try:
        node = find(candidate, ("conv",))
        k = node.inputs[1]
        if not k.is_constant:
            raise Illegal("the weights are computed at run time")
        s = slide(node, lanes_of(candidate, node), k.shape[2:], k.shape[0], node.attrs["groups"])
        if 1 < s.groups == s.c == s.m:
            return per_channel(candidate, machine, s, DEPTHWISE)
        return (_last if s.lanes == CHANNELS else _first)(candidate, machine, s.dense)
    except Illegal as reason:
        return reason.no


# ---------------------------------------------------------------- channels-last


def _last(candidate: Candidate, machine: Machine, s: Slide) -> Kernel:
    writer, shape = Writer(candidate), pixels_shape(s, machine, candidate.param)
    panels, tiling, per_group = s.groups * shape.lanes.count, shape.tiling, s.m // s.groups
    size = s.c // s.groups * s.taps * shape.lanes.width
    k = _weights(writer, s, Packing("conv_panels", (s.groups, shape.lanes.width, machine.vl)), panels * size)
    source = whole(candidate, writer, s, tiling.rows, 0, (shape.py, shape.px))
    split = shape.lanes.count
    head = [
        "constexpr int NV = vectors.value, N = channels.value;",
        f"const float* k = {k} + {size} * j;",
        f"const int64_t m0 = {_of_panel(per_group, split, shape.lanes.width)};",
    ]
    if s.groups > 1:
        head.append(f"const float* x = in + j / {split} * {s.c // s.groups};")
    panel = block(
        "const auto panel = [&](auto vectors, auto channels, int64_t j) {",
        [*head, *_pixels(s, shape, source, epilogue(candidate, writer, s))], "};",
    )  # fmt: skip
    loop = block(
        f"{share_of('j', panels, tiling)} {{",
        blocks("panel", shape.lanes, "j" if s.groups == 1 else f"j % {split}", "j"),
    )
    return done(writer, machine, tiling, [*source.lines, *panel, *loop])


def _of_panel(per_group: int, split: int, width: int) -> str:
    """The first output channel of panel j."""
    if split == 1:
        return f"{per_group} * j"
    if per_group == split * width:
        return f"{width} * j"
    return f"j / {split} * {per_group} + j % {split} * {width}"


def _pixels(s: Slide, shape: Shape, source: Input, end) -> list[str]:
    """The rows and pixel blocks of a band, for one panel."""
    x = f"{'x' if s.groups > 1 else 'in'} + {source.row * s.sh} * (top - h0) + {source.pixel * s.sw} * left"
    steps = f"{source.pixel * s.sw}, {source.row * s.sh}, {source.row * s.dh}"
    per_group = s.c // s.groups
    if s.kw == 1 or (s.dw == 1 and source.pixel == per_group):
        call = f"conv_tile<PX, NV, PY>(c, {x}, {steps}, {s.kh}, {s.kw * per_group}, k);"
    else:
        call = f"conv_tile_taps<PX, NV, PY>(c, {x}, {steps}, {source.pixel * s.dw}, {s.kh}, {s.kw}, {per_group}, k);"
    where = ["const int64_t h = top, w = left + p, m = m0 + v * VL;"]
    if shape.py > 1:
        where = ["const int64_t h = top + p / PX, w = left + p % PX, m = m0 + v * VL;"]
    tile = ["vf c[PY * PX][NV];", "zero(c);", call, *each_vector("N", end, where)]
    columns = block(
        f"for_rows<{shape.px}, {s.ow}>([&](auto px, int64_t left) {{",
        ["constexpr int PX = px.value;", *tile], "});",
    )  # fmt: skip
    if shape.py == 1:
        return block("for (int64_t top = h0; top < h1; ++top) {", ["constexpr int PY = 1;", *columns])
    return block(
        f"for_rows<{shape.py}, {shape.tiling.rows}>([&](auto py, int64_t row) {{",
        ["constexpr int PY = py.value;", "const int64_t top = h0 + row;", *columns], "});",
    )  # fmt: skip


# ---------------------------------------------------------------- channels-first


def _first(candidate: Candidate, machine: Machine, s: Slide) -> Kernel:
    writer, shape = Writer(candidate), columns_shape(s, machine, candidate.param)
    tiling, per_group = shape.tiling, s.m // s.groups
    share = per_group // tiling.splits  # output channels of a tile, in each group
    size = s.c // s.groups * s.taps  # weights of an output channel
    k = _weights(writer, s, Packing("conv_blocks", (share, shape.px)), s.m * size)
    slack = 0 if s.sw == 1 and s.ow % machine.vl == 0 else shape.lanes.width * (s.sw + 1)
    source = whole(candidate, writer, s, tiling.rows, slack)
    x = f"in + {source.row * s.sh} * (h - h0) + {s.sw} * left"
    first = "row" + (f" + split * {share}" if tiling.splits > 1 else "")
    if s.groups > 1:
        x += f" + {source.plane * (s.c // s.groups)} * g"
        first += f" + {per_group} * g"
    call = (f"conv_first<MR, NV, {s.sw}>(c, {x}, {s.c // s.groups}, {source.plane}, {s.kh}, {source.row * s.dh}, "
            f"{s.kw}, {s.dw}, {k} + {size} * m0);")  # fmt: skip
    where = ["const int64_t m = m0 + p, w = left + v * VL;"]
    rows = block(
        f"for_rows<{shape.px}, {share}>([&](auto mr, int64_t row) {{",
        ["constexpr int MR = mr.value;", f"const int64_t m0 = {first};", "vf c[MR][NV];", "zero(c);", call,
         *each_vector("N", epilogue(candidate, writer, s), where)], "});",
    )  # fmt: skip
    if s.groups > 1:
        rows = block(f"for (int64_t g = 0; g < {s.groups}; ++g) {{", rows)
    columns = block(
        "const auto columns = [&](auto vectors, auto width, int64_t h, int64_t left) {",
        ["constexpr int NV = vectors.value, N = width.value;", *rows], "};",
    )  # fmt: skip
    loop = block(
        "for (int64_t h = h0; h < h1; ++h) {",
        block(
            f"for (int64_t left = 0; left < {s.ow}; left += {shape.lanes.width}) {{",
            blocks("columns", shape.lanes, f"left / {shape.lanes.width}", "h, left"),
        ),
    )
    return done(writer, machine, tiling, [*source.lines, *columns, *loop])


def _weights(writer: Writer, s: Slide, packing: Packing, elements: int) -> str:
    """A pointer to the packed weights. A single number stands in the code."""
    value = s.node.inputs[1]
    if not is_scalar(value):
        return writer.packed(value, packing.packer, packing.args, elements)
    numbers = ", ".join(f"{x!r}f" for x in pack(value.array, packing).tolist())
    writer.scratch_lines.append(f"const float k0[] = {{{numbers}}};")
    return "k0"
