"""Layouts: addresses, adapters between all pairs, kernels that read and give every layout."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fissile.ir import prims as p
from fissile.ir.graph import placeholder
from fissile.ir.layout import (
    Layout,
    Token,
    channels_blocked,
    channels_last,
    row_major,
    turned,
)
from fissile.ir.types import F32, I32, of
from fissile.kernels.candidate import EMPTY, Candidate
from fissile.targets.cpu.impls import maps
from fissile.tiles.index import const
from fissile.tiles.place import place

sys.path.insert(0, str(Path(__file__).parent))
from running import candidate_of, expected, run_kernel, to_memory

ALL = {
    "first": row_major(4),
    "last": channels_last(4),
    "blocks of 16": channels_blocked(4, 16),
    "blocks of 8": channels_blocked(4, 8),
    "turned": turned(4),
}


def noise(*shape: int, seed: int = 7) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def any_layout() -> st.SearchStrategy[Layout]:
    return st.sampled_from(list(ALL.values()))


@settings(max_examples=60, deadline=None)
@given(shape=st.tuples(*[st.integers(1, 20)] * 4), layout=any_layout(), data=st.data())
def test_addresses_are_those_of_the_transposed_array(shape, layout: Layout, data) -> None:
    """numpy moves element numbers into the layout; the address of an element is where it went."""
    numbers = np.arange(1, 1 + np.prod(shape), dtype=np.int64).reshape(shape)
    stored = to_memory(numbers, layout).reshape(-1)
    assert layout.elements(shape) == stored.size
    point = tuple(data.draw(st.integers(0, n - 1)) for n in shape)
    at = place(layout, tuple(const(i) for i in point), shape)
    assert at.is_constant and stored[at.constant] == numbers[point]


@pytest.mark.parametrize("source", ALL)
@pytest.mark.parametrize("target", ALL)
@pytest.mark.parametrize("shape", [(2, 32, 7, 9), (1, 48, 20, 20), (1, 20, 5, 6), (3, 1, 4, 4)])
@pytest.mark.parametrize("dtype", [F32, I32])
def test_adapters(source: str, target: str, shape: tuple[int, ...], dtype) -> None:
    if source == target:
        return
    x = placeholder(of(shape, dtype))
    needs, gives = (Token(x, ALL[source]),), (Token(x, ALL[target]),)
    candidate = Candidate(EMPTY, "adapter", (), needs, gives)
    kernel = maps.lower(candidate)
    assert kernel, kernel
    values = (noise(*shape) * 100).astype(dtype.numpy)
    (got,) = run_kernel(candidate, kernel, [values])
    np.testing.assert_array_equal(got, values)


@settings(max_examples=20, deadline=None)
@given(
    n=st.integers(1, 2), c=st.integers(1, 3), h=st.integers(1, 9), w=st.integers(1, 9),
    source=any_layout(), target=any_layout(),
)  # fmt: skip
def test_adapters_of_any_shape(n, c, h, w, source: Layout, target: Layout) -> None:
    if source == target:
        return
    x = placeholder(of((n, 8 * c + (h == w) * 3, h, w)))
    candidate = Candidate(EMPTY, "adapter", (), (Token(x, source),), (Token(x, target),))
    kernel = maps.lower(candidate)
    assert kernel, kernel
    values = noise(*x.shape)
    (got,) = run_kernel(candidate, kernel, [values])
    np.testing.assert_array_equal(got, values)


def check(y, layouts: dict) -> str:
    candidate = candidate_of((y,), layouts)
    kernel = maps.lower(candidate)
    assert kernel, kernel
    inputs = [noise(*v.shape, seed=k) for k, v in enumerate(candidate.region.tensors)]
    for got, want in zip(
        run_kernel(candidate, kernel, inputs), expected(candidate, inputs), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    return kernel.source


BLOCKED = ALL["blocks of 16"]


def test_elementwise_in_blocks_runs_on_whole_vectors() -> None:
    x, r = placeholder(of((1, 64, 14, 14))), placeholder(of((1, 64, 14, 14)))
    y = p.maximum(x * p.constant(noise(64, 1, 1)) + r, 0.0)
    text = check(y, dict.fromkeys((x, r, y), BLOCKED))
    assert "%" not in text and "lanes(" in text
    check(y, {x: BLOCKED, r: channels_last(4), y: BLOCKED})


def test_moves_in_blocks() -> None:
    a, b = placeholder(of((1, 32, 6, 7))), placeholder(of((1, 48, 6, 7)))
    joined = p.concat([a, b], 1)
    text = check(joined, dict.fromkeys((a, b, joined), BLOCKED))
    assert "%" not in text
    padded = p.pad(a, (0, 0, 1, 1), (0, 0, 2, 1))
    check(padded, dict.fromkeys((a, padded), BLOCKED))
    part = p.slice_(b, (0, 16, 0, 0), (1, 32, 6, 7))
    check(part, dict.fromkeys((b, part), BLOCKED))
    turned_over = p.transpose(a, (0, 2, 3, 1))
    check(turned_over, {a: BLOCKED})


def test_slices_and_concats_of_whole_blocks_are_free() -> None:
    x = placeholder(of((1, 64, 6, 7)))
    part = p.slice_(x, (0, 32, 0, 0), (1, 32, 6, 7))
    candidate = candidate_of((part,), dict.fromkeys((x, part), BLOCKED))
    assert maps.alias_offset(candidate) == 32 * 42 * 4
    assert not maps.alias_offset(candidate_of((part,), dict.fromkeys((x, part), ALL["last"])))
    turned_over = p.transpose(x, (0, 1, 3, 2))
    assert maps.alias_offset(candidate_of((turned_over,), {x: ALL["turned"]})) == 0
