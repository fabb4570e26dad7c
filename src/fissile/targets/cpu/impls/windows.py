"""Pooling: window_max and window_sum over one or two axes, with a prologue (pads) and an epilogue.

An average is a sum whose epilogue divides. f32 only.
"""

from __future__ import annotations

from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.targets.cpu.impls.anchor import block_size, find, lanes_of, slide
from fissile.targets.cpu.impls.planes import MAXIMUM, SUM
from fissile.targets.cpu.impls.sliding import per_channel
from fissile.targets.cpu.machine import Machine
from fissile.tiles.expr import Illegal

FOLDS = {"window_max": MAXIMUM, "window_sum": SUM}


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """The kernel of a region with one pool. `params` may hold lanes (channels or columns), px, nv
    and rows."""
    try:
        node = find(candidate, tuple(FOLDS))
        lanes, channels = lanes_of(candidate, node), node.inputs[0].shape[1]
        if (size := block_size(candidate)) and size != machine.vl:
            raise Illegal(f"channels in blocks of {size}, vectors of {machine.vl}")
        s = slide(node, lanes, node.attrs["kernel"], channels, channels)
        return per_channel(candidate, machine, s, FOLDS[node.prim])
    except Illegal as reason:
        return reason.no
