"""The judge itself: what counts as right, what does not, and that it can say no."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from fissile import verify
from fissile.ir import blas
from fissile.ir import prims as p
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, placeholder
from fissile.ir.types import F16, I64, of
from fissile.verify import References, WrongAnswer, check, difference, relative_error, samples


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
        (3.3e38, 1e300, False),  # a number where there should be an infinity
        (np.inf, 3e38, True),  # a partial sum may be larger
        (-np.inf, 3e38, False),
        (-np.inf, -3e38, True),
        (2e38, 3e38, False),
        (3.4e38, 3.4e38 * (1 + 1e-7), True),
        (np.nan, 3e38, False),
        (np.nan, np.inf, False),
        (3e38, np.inf, False),
    ],
)
def test_what_is_not_finite(got: float, want: float, equal: bool) -> None:
    error = relative_error(f32(got, 1.0), np.array([want, 1.0]))
    assert (error < 1e-6) is equal


@pytest.mark.parametrize(("got", "want"), [(16384, 16375), (16368, 16384), (65504, 65520)])
def test_no_gap_at_the_end_of_a_range(got: float, want: float) -> None:
    """An ulp of f16 is 8 or 16 there."""
    others = np.array([got, 1.0], np.float16), np.array([want, 1.0])
    assert relative_error(*others) == pytest.approx(abs(got - want) / want, rel=1e-3)


def test_large_elements_do_not_set_the_scale_of_others() -> None:
    got, want = f32(3e38, 2.0, 100.0), np.array([3e38, 1.0, 100.0])
    found = difference(got, want)
    assert found.error == pytest.approx(0.01) and found.large < 1e-6 and not found.odd.any()


def test_complex_infinities_and_nans() -> None:
    got = np.array([np.inf + 1j, complex(np.nan, 1), 1 + 1j, np.inf], np.complex64)
    want = np.array([np.inf + 1j, complex(1, np.nan), 1 + 1j, 1e5])
    assert difference(got, want).odd.tolist() == [False, False, False, True]


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


def columns() -> Graph:
    """One column of 64 overflows in f32, to either side, where the reference cancels."""
    x = placeholder(of([16, 64]))
    w = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    w[:, 3] = np.sign(w[:, 3]) * np.float32(3e38)
    return Graph((x,), (p.contract(x, p.constant(w), "mk,kn->mn"),), ("x",), ("y",))


def quietly(graph: Graph, inputs: Sequence[np.ndarray]) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.array(evaluate(graph, inputs)[0])


def test_one_overflow_excuses_nothing_else() -> None:
    g = columns()
    report = check(g, lambda inputs: [quietly(g, inputs)], None)
    assert report.excused > 0 and report.allowed < 1e-4 and "NaN or infinite" in str(report)

    def wrong(value: float, column: slice, times: float) -> Callable[..., list[np.ndarray]]:
        def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
            y = quietly(g, inputs)
            if inputs[0].std() > times:
                y[:, column] = value
            return [y]

        return run

    for value in (1e3, np.inf, -np.inf, np.nan):
        for least in (0, 20):  # in every sample but constants, or only where inputs are large
            with pytest.raises(WrongAnswer):
                check(g, wrong(value, slice(10, 64), least), None)
    with pytest.raises(WrongAnswer, match="in what is NaN or infinite") as refusal:
        check(g, wrong(np.nan, slice(10, 11), 0), None)
    assert refusal.value.error == np.inf and np.isfinite(refusal.value.allowed)


def test_an_infinity_of_ours_alone_is_wrong() -> None:
    """Where the judge and the reference are finite, and the judge is odd elsewhere."""
    g = columns()

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        y = quietly(g, inputs)
        y[0, 5] = np.inf
        return [y]

    with pytest.raises(WrongAnswer, match="at 1 elements"):
        check(g, run, None)


def test_half_floats_beyond_a_quarter_of_their_range() -> None:
    """Sums near 16376 and beyond 65504: the yardstick stays that of f16, and garbage is seen."""
    x = placeholder(of([64, 256], F16))
    w = (np.random.default_rng(1).standard_normal((256, 64)) * 30).astype(np.float16)
    g = Graph((x,), (p.contract(x, p.constant(w), "mk,kn->mn"),), ("x",), ("y",))

    def ordinary(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(over="ignore"):
            return [(inputs[0].astype("f4") @ w.astype("f4")).astype(np.float16)]

    def another_order(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        with np.errstate(over="ignore"):
            sums = np.cumsum(inputs[0].astype("f4")[:, :, None] * w.astype("f4"), axis=1)
            return [sums[:, -1].astype(np.float16)]

    def garbage(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        (y,) = another_order(inputs)
        if inputs[0].astype("f4").std() > 20:
            y[:, 10:] = 7
        return [y]

    report = check(g, another_order, ordinary)
    assert report.allowed < 0.01 and not report.excused
    with pytest.raises(WrongAnswer):
        check(g, garbage, ordinary)


def test_a_judge_of_another_shape_is_none() -> None:
    right = lambda inputs: [softmax(inputs[0])]  # noqa: E731
    wrong = lambda inputs: [softmax(inputs[0]) * np.float32(1.1)]  # noqa: E731
    flat = lambda inputs: [softmax(inputs[0]).reshape(-1)]  # noqa: E731
    check(graph(), right, flat)
    for run in (wrong, flat):
        with pytest.raises(WrongAnswer):
            check(graph(), run, flat)


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


def test_a_sample_is_uneven_where_inputs_are_real() -> None:
    """In rows and in channels, the same each time; integers alone need none."""
    x, ids = placeholder(of([200, 300])), placeholder(of([7], I64))
    g = Graph((x, ids), (p.exp(x), ids + 1), ("x", "i"), ("y", "z"))
    first, again = samples(g), samples(g)
    assert len(first) == 5
    for a, b in zip(first, again, strict=True):
        assert all(np.array_equal(u, v) for u, v in zip(a, b, strict=True))
    for axis in (0, 1):
        norms = np.linalg.norm(first[4][0].astype("f8"), axis=axis)
        assert norms.max() / np.median(norms) > 5 and np.median(norms) / norms.min() > 5
    assert np.isfinite(first[4][0]).all()
    assert len(samples(Graph((ids,), (ids + 1,), ("i",), ("z",)))) == 4


def test_rows_that_disturb_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of 1e-6 of the larger of two rows, before rows are normalised."""
    x = placeholder(of([200, 64]))
    g = Graph((x,), (x / p.reduce_max(p.abs_(x), 1),), ("x",), ("y",))

    def run(inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
        a = inputs[0].astype(np.float64)
        a = a + 1e-6 * np.roll(a, 100, 0)
        most = np.abs(a).max(1, keepdims=True)
        return [np.divide(a, most, where=most > 0, out=np.full_like(a, np.nan)).astype("f4")]

    with pytest.raises(WrongAnswer):
        check(g, run, None)
    monkeypatch.setattr(verify, "samples", lambda graph: samples(graph)[:4])
    check(g, run, None)


def test_nothing_of_the_references_goes_on_after_their_end(monkeypatch) -> None:
    """Whoever fails meanwhile gets back all threads of numpy, and waits for no further sample."""
    begun, go = list[int](), threading.Event()

    def slow(*_):
        begun.append(1)
        go.wait(10)
        return [], []

    monkeypatch.setattr(verify, "_reference", slow)
    monkeypatch.setattr(verify, "usable_threads", lambda: 1)
    with pytest.raises(KeyError), References(graph()) as references:
        references.begin()
        while not begun:
            time.sleep(0.01)
        threading.Timer(0.2, go.set).start()
        raise KeyError
    assert len(begun) == 1 < len(samples(graph()))


def test_references_are_computed_once_and_serve_several_checks(monkeypatch) -> None:
    count, plain = [0], verify._reference
    monkeypatch.setattr(
        verify, "_reference", lambda *a: (count.__setitem__(0, count[0] + 1), plain(*a))[1]
    )
    g = graph()
    references = References(g)
    references.begin()
    references.begin()
    for _ in range(2):
        check(g, lambda inputs: [softmax(inputs[0])], None, "default", references)
    assert count[0] == len(samples(g))
