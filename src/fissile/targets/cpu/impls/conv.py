"""Convolutions with constant weights, with what stands before and after them.

    y[n, m, h, w] = sum_{c, i, j} x[n, c, h sh + i dh, w sw + j dw] k[m, c, i, j]

Channels-last: an implicit contraction over runs of KW * C elements; a tile is PY x PX pixels and NV vectors of
output channels, weights in panels. Channels-first: a tile is MR output channels and NV vectors of columns.
One channel per group: see `sliding`. The input is read in place, or a band of rows is filled with the prologue.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fissile.ir.graph import Value
from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import is_scalar
from fissile.targets.cpu.impls.anchor import CHANNELS, Slide, block, epilogue, find, lanes_of, slide
from fissile.targets.cpu.impls.bands import Tiling, whole
from fissile.targets.cpu.impls.shape import LaneSplit, Shape, columns_shape, pixels_shape
from fissile.targets.cpu.impls.sliding import DEPTHWISE, per_channel
from fissile.targets.cpu.impls.writer import Writer
from fissile.targets.cpu.machine import Machine
from fissile.targets.cpu.packing import pack
from fissile.kernels.candidate import Packing
from fissile.tiles.expr import Illegal

UNROLLED = 10.0  # operations of an epilogue that is repeated for every accumulator


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one convolution over one or two axes. f32 only."""
    try:
        node = find(candidate, ("conv",))
        weights = node.inputs[1]
        if not weights.is_constant:
            raise Illegal("the weights are computed at run time")
        s = slide(node, lanes_of(candidate, node), weights.shape[2:], weights.shape[0], node.attrs["groups"])
        if s.groups == s.c == s.m and s.groups > 1:
            return per_channel(candidate, machine, s, DEPTHWISE)
        return (_last if s.lanes == CHANNELS else _first)(candidate, machine, s)
    except Illegal as reason:
        return reason.no


def _last(candidate: Candidate, machine: Machine, s: Slide) -> Kernel:
    writer, shape = Writer(candidate), pixels_shape(s, machine, candidate.param)
    split, tiling = shape.lanes, shape.tiling
    size = s.c // s.groups * s.taps * split.width  # elements of a panel
    b = _weights(writer, s, "conv_panels", (s.groups, split.width, machine.vl), s.groups * split.count * size)
    source = whole(candidate, writer, s, tiling.rows, slack=0)
    end = epilogue(candidate, writer, s)
    group = f"j / {split.count}" if s.groups > 1 else "0"
    channel = f"{group} * {s.m // s.groups} + j % {split.count} * {split.width}" if s.groups > 1 else f"j * {split.width}"
    x = f"in + (h - h0) * {source.row * s.sh} + left * {source.pixel * s.sw}"
    x += f" + {group} * {s.c // s.groups}" if s.groups > 1 else ""
    strides = f"{source.pixel * s.sw}, {source.row * s.sh}, {source.row * s.dh}"
    if s.dw == 1 and source.pixel * s.groups == s.c or s.kw == 1:
        call = f"conv_tile<PX, NV, PY>(c, {x}, {strides}, {s.kh}, {s.kw * s.c // s.groups}, b + {size} * j);"
    else:
        call = (f"conv_tile_taps<PX, NV, PY>(c, {x}, {strides}, {source.pixel * s.dw}, {s.kh}, {s.kw}, "
                f"{s.c // s.groups}, b + {size} * j);")  # fmt: skip
"""  # to be continued
