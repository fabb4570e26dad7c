"""Convolutions that also give the statistics of their result.           (kernels/statistics)

Each is the kernel of one of the other implementations, which ends every band with its moments.
"""

from __future__ import annotations

from collections.abc import Iterator

from fissile.kernels.candidate import Candidate, Kernel, No
from fissile.kernels.region import Region
from fissile.kernels.statistics import statistics_of
from fissile.targets.cpu.impls import conv, winograd
from fissile.targets.cpu.impls.implementation import Params
from fissile.targets.cpu.machine import Machine

LOWERS = {"conv": conv.lower, "winograd": winograd.lower}


def takes(region: Region) -> bool:
    shapes = [n.value.shape for n in region.nodes if n.prim == "conv"]
    return len(shapes) == 1 and (s := statistics_of(region)) is not None and [s.of.shape] == shapes


def lower(candidate: Candidate, machine: Machine) -> Kernel | No:
    """`params`: `by` names the implementation, the rest is its own."""
    kernel = LOWERS[candidate.param["by"]](candidate, machine)
    if kernel and not kernel.closes:
        return No("its kernel takes no statistics")
    return kernel


def variants(candidate: Candidate, machine: Machine) -> Iterator[Params]:
    yield (("by", "conv"),)
    if any(n.prim == "conv" and winograd.fits(n) for n in candidate.region.nodes):
        for params in winograd.variants(candidate, machine):
            yield (("by", "winograd"), *params)


def saving(candidate: Candidate) -> float:
    return winograd.saving(candidate) if _is_winograd(candidate) else 1.0


def error(candidate: Candidate) -> float:
    return winograd.error(candidate) if _is_winograd(candidate) else 0.0


def opened_bytes(candidate: Candidate) -> int:
    return winograd.opened_bytes(candidate) if _is_winograd(candidate) else 0


def _is_winograd(candidate: Candidate) -> bool:
    return candidate.param["by"] == "winograd"
