"""The judge itself: what counts as right, what does not, and that it can say no."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from fissile.ir import blas
from fissile.ir import prims as p
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, placeholder
from fissile.ir.types import I64, of
from fissile.verify import WrongAnswer, check, relative_error, samples


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_errors_are_relative_to_the_largest_value() -> None:
    assert relative_error(f32(1, 100), np.array([1.5, 100.0])) == pytest.approx(0.005)
    assert relative_error(f32(0, 0.25), np.zeros(2)) == 0.25


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (np.nan, np.nan, True),
        (np.nan, 1.0, False),
        (1.0, np.nan, False),
        (np.inf, np.inf, True),
        (np.inf, -np.inf, False),
        (np.inf, 1e300, True),  # f32 cannot hold it
        (np.inf, 1e30, False),
        (1.0, 1e300, False),
    ],
)
def test_what_is_not_finite(got: float, want: float, equal: bool) -> None:
    error = relative_error(f32(got, 1.0), np.array([want, 1.0]))
    assert (error < 1e-6) is equal


def graph() -> Graph:
    x = placeholder(of([4, 8]))
    y = p.exp(x - p.reduce_max(x, 1))
    return Graph((x,), (y / p.reduce_sum(y, 1),), ("x",), ("y",))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def test_a_right_answer_passes_and_a_wrong_one_does_not() -> None:
    report = check(graph(), lambda inputs: [softmax(inputs[0])], None)
    assert report.error <= report.allowed
    with pytest.raises(WrongAnswer, match="'y'"):
        check(graph(), lambda inputs: [softmax(inputs[0]) * np.float32(1.001)], None)
    with pytest.raises(WrongAnswer):
        check(graph(), lambda inputs: [np.full((4, 8), np.nan, np.float32)], None)


def test_integer_samples_stay_inside_what_they_index() -> None:
    table, ids = placeholder(of([5, 3])), placeholder(of([7], I64))
    g = Graph((table, ids), (p.gather(table, ids),), ("t", "i"), ("y",))
    for _, indices in samples(g):
        assert indices.min() >= 0 and indices.max() < 5


def test_integers_that_are_changed_before_they_index() -> None:
    table, ids = placeholder(of([5, 3])), placeholder(of([7], I64))
    index = p.maximum(ids + 2, 0) - 2
    g = Graph((table, ids), (p.gather(table, index),), ("t", "i"), ("y",))
    assert check(g, lambda inputs: [inputs[0][inputs[1]]], None).error == 0
    shifted = Graph((table, ids), (p.gather(table, ids + 3),), ("t", "i"), ("y",))
    assert check(shifted, lambda inputs: [inputs[0][inputs[1] + 3]], None).error == 0


def test_complex_numbers_are_compared_whole() -> None:
    assert relative_error(np.array([1 + 1j], np.complex64), np.array([1 + 5j])) > 0.5


def test_a_lucky_judge_is_not_the_only_one() -> None:
    x = placeholder(of([2, 64]))
    g = Graph((x,), (p.exp(p.reduce_sum(x * x, 1)),), ("x",), ("y",))

    def lucky(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        return evaluate(g, inputs, reference=True)

    def another_order(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        total = np.zeros((2, 1), np.float32)
        for column in (inputs[0] * inputs[0]).T:
            total += column[:, None]
        with np.errstate(over="ignore"):
            return [np.exp(total)]

    check(g, another_order, lucky)
    with pytest.raises(WrongAnswer):
        check(g, lambda inputs: [a * np.float32(1.01) for a in another_order(inputs)], lucky)


def test_numpy_takes_one_thread_only_inside():
    """Told by OpenBLAS itself, where numpy has it."""
    get, put = blas._functions()
    before = get()
    put(2)
    try:
        most = get()
        with blas.one_thread():
            assert get() == 1
        assert get() == most
    finally:
        put(before)
