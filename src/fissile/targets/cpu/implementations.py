"""Every way to compute a region on a CPU, in the order in which they are tried."""

from __future__ import annotations

from fissile.ir.prims import Kind, kind
from fissile.kernels.blend import blend_of, kind_in_kernel
from fissile.kernels.region import Region
from fissile.targets.cpu.impls import (
    attention,
    chain,
    contractions,
    conv,
    fixed,
    heads,
    library,
    loops,
    maps,
    measured,
    rows,
    split,
    strassen,
    windows,
    winograd,
)
from fissile.targets.cpu.impls.implementation import Implementation, one_anchor

_ELEMENT_BY_ELEMENT = {Kind.ELEMENTWISE, Kind.LAYOUT, Kind.BROADCAST}


def _kinds(region: Region) -> set[Kind]:
    return {kind_in_kernel(n) for n in region.nodes}


def _is_empty(region: Region) -> bool:
    """Sums of nothing: only loops count that far. (The target offers no rival there.)"""
    return any(not v.type.numel for n in region.nodes for v in n.inputs)


def _linear(region: Region) -> bool:
    return Kind.LINEAR in _kinds(region) and one_anchor(region.nodes) and not _is_empty(region)


def _blends(region: Region) -> bool:
    """The one linear primitive is a matrix of few terms."""
    linear = [n for n in region.nodes if kind(n) is Kind.LINEAR]
    return len(linear) == 1 and blend_of(linear[0]) is not None


def _pools(region: Region) -> bool:
    kinds = _kinds(region)
    return Kind.WINDOW in kinds and Kind.LINEAR not in kinds and not _is_empty(region)


def _reduces(region: Region) -> bool:
    kinds = _kinds(region)
    return kinds <= {*_ELEMENT_BY_ELEMENT, Kind.REDUCE} and (
        Kind.REDUCE in kinds and not _is_empty(region)
    )


def _attends(region: Region) -> bool:
    linear = sum(kind(n) is Kind.LINEAR for n in region.nodes)
    return linear == 2 and Kind.REDUCE in _kinds(region)


def _computes(region: Region) -> bool:
    """What did not grow for the sake of an implementation that reaches further."""
    return not _moves_elements(region) and one_anchor(region.nodes)


def _moves_elements(region: Region) -> bool:
    return _kinds(region) <= _ELEMENT_BY_ELEMENT


def _products(region: Region) -> bool:
    return _linear(region) and not _blends(region) and library.takes(region)


def _of_library(name: str) -> Implementation:
    return Implementation(
        name, library.lower, _products, 0.85, variants=library.variants, rival=True, library=name
    )


IMPLEMENTATIONS: tuple[Implementation, ...] = (
    Implementation("dense", contractions.lower, _blends, 0.1, rival=True),
    Implementation("chain", chain.lower, split.takes, 0.9, admits=lambda nodes: False, rival=True),
    Implementation("map", maps.lower, _moves_elements, 0.5, blocks=True),
    Implementation("contraction", contractions.lower, _linear, 0.95),
    Implementation(
        "strassen", strassen.lower, strassen.takes, 0.93, variants=strassen.variants, rival=True,
        saving=strassen.saving, error=strassen.error, extra_bytes=strassen.extra_bytes,
    ),
    Implementation(
        "fixed", fixed.lower, fixed.takes, 0.9, variants=fixed.variants, rival=True,
        saving=fixed.saving, error=fixed.error,
    ),
    Implementation("conv", conv.lower, _linear, 0.95, variants=conv.variants, blocks=True),
    Implementation(
        "winograd", winograd.lower, winograd.takes, 0.75, variants=winograd.variants, rival=True,
        saving=winograd.saving, error=winograd.error, opened_bytes=winograd.opened_bytes,
    ),
    Implementation(
        "measured", measured.lower, measured.takes, 0.9, admits=lambda nodes: False, rival=True,
        variants=measured.variants, saving=measured.saving, error=measured.error,
        opened_bytes=measured.opened_bytes,
    ),
    Implementation(
        "attention", attention.lower, _attends, 0.95, heads.admits, rival=True,
        primitives=10, contractions=2,
    ),
    Implementation("window", windows.lower, _pools, 0.2, blocks=True),
    Implementation("rows", rows.lower, _reduces, 0.3, blocks=True),
    _of_library("openblas"),
    _of_library("onednn"),
    Implementation("loops", loops.lower, _computes, 0.01),
)  # fmt: skip
BY_NAME = {i.name: i for i in IMPLEMENTATIONS}
