"""`Cpu.is_legal` leaves loops out; `Cpu.kernel` writes them all. They agree on every candidate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fissile.ir import prims as p
from fissile.ir.graph import Graph, Value, placeholder
from fissile.ir.types import I64, of
from fissile.kernels.candidate import Candidate
from fissile.kernels.identify import Limits, identify
from fissile.targets.cpu.machine import this_machine
from fissile.targets.cpu.target import Cpu
from fissile.verify import POLICY, most_error


def padded_concat() -> list[Value]:
    x, z = placeholder(of([1, 6, 9, 11])), placeholder(of([1, 3, 9, 11]))
    y = p.concat([p.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), "reflect"),
                  p.pad(z, (0, 0, 1, 1), (0, 0, 1, 1), "constant")], 1)  # fmt: skip
    return [y * 2.0, p.slice_(y, (0, 2, 0, 0), (1, 5, 11, 13), (1, 1, 1, 1))]


def indices_behind_a_question() -> list[Value]:
    x, i, j = placeholder(of([20, 4])), placeholder(of([3], I64)), placeholder(of([2], I64))
    return [p.gather(x, p.concat([i, j], 0), 0), p.gather(x, p.reshape(i, (3, 1)), 0)]


def indices_behind_an_operation() -> list[Value]:
    x, i = placeholder(of([20, 4])), placeholder(of([3], I64))
    return [p.gather(x, i + i, 0)]


def softmax_of_a_product() -> list[Value]:
    x, w = placeholder(of([2, 12, 16])), placeholder(of([2, 16, 8]))
    y = p.contract(p.pad(x, (0, 1, 0), (0, 1, 0), "constant"), w, "bmk,bkn->bmn")
    e = p.exp(y - p.reduce_max(y, (2,)))
    return [e / p.reduce_sum(e, (2,))]


def convolution_between_pads() -> list[Value]:
    x, w = placeholder(of([1, 4, 12, 14])), placeholder(of([6, 4, 3, 3]))
    y = p.conv(p.pad(x, (0, 0, 1, 1), (0, 0, 1, 1), "edge"), w, (1, 1), (1, 1), 1)
    return [p.maximum(y, 0.0), p.pad(y, (0, 0, 0, 1), (0, 0, 0, 1), "constant")]


@pytest.mark.parametrize(
    "build",
    [padded_concat, indices_behind_a_question, indices_behind_an_operation, softmax_of_a_product,
     convolution_between_pads],
)  # fmt: skip
def test_what_is_legal_has_a_kernel_and_nothing_else(build: Callable[[], list[Value]]) -> None:
    outputs = build()
    inputs = tuple(dict.fromkeys(_inputs(outputs)))
    graph = Graph(
        inputs, tuple(outputs), tuple("abcdef"[: len(inputs)]), ("y", "z")[: len(outputs)]
    )
    cpu, tried = Cpu(graph), []
    ask = cpu.is_legal

    def asked(candidate: Candidate) -> bool:
        tried.append(candidate)
        return ask(candidate)

    cpu.is_legal = asked  # type: ignore[method-assign]
    for region in identify(graph, Limits(), cpu.admissible):
        list(cpu.implementations(region))
    assert tried
    for candidate in tried:
        assert ask(candidate) == bool(cpu.kernel(candidate)), (candidate, cpu.kernel(candidate))


def product() -> Value:
    w = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32)
    return p.contract(placeholder(of([1024, 512])), p.constant(w), "mk,kn->mn")


def convolution() -> Value:
    w = np.random.default_rng(0).standard_normal((64, 64, 3, 3)).astype(np.float32)
    return p.conv(placeholder(of([1, 64, 30, 30])), p.constant(w), (1, 1), (1, 1), 1)


@pytest.mark.parametrize(
    ("name", "build", "accuracies"),
    [("strassen", product, {"default", "fast"}), ("winograd", convolution, {"default", "fast"}),
     ("fixed", product, {"fast"})],
)  # fmt: skip
def test_exact_offers_nothing_that_mixes_magnitudes(
    name: str, build: Callable[[], Value], accuracies: set[str]
) -> None:
    y = build()
    graph = Graph(tuple(_inputs([y])), (y,), ("x",), ("y",))
    machine = replace(this_machine(), pairs=True)
    for accuracy in POLICY:
        cpu = Cpu(graph, machine, error=most_error(accuracy))
        regions = identify(graph, Limits(), cpu.admissible)
        offered = {c.impl for region in regions for c in cpu.implementations(region)}
        assert offered and (name in offered) == (accuracy in accuracies), (accuracy, offered)


def _inputs(outputs: list[Value]) -> list[Value]:
    return [
        v for n in Graph((), tuple(outputs), (), ()).nodes if n.prim == "input" for v in n.outputs
    ]
