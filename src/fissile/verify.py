"""Is a compiled model right?                                                (design, section 13)

The reference is the primitive graph in float64. The yardstick is the error of an ordinary f32 run
against it: ONNX Runtime where it is installed, else our own evaluator; where the first would
refuse, the larger error of the two. A model passes when its error is at most `factor` times the
yardstick or `floor` of the output's scale, whichever is larger. Both are always reported.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from fissile.errors import FissileError, shown
from fissile.ir.blas import one_thread
from fissile.ir.evaluate import evaluate
from fissile.ir.graph import Graph, Value
from fissile.targets.cpu.host import usable_threads

POLICY = {"exact": (2.0, 2e-5), "default": (8.0, 2e-5), "fast": (8.0, 1e-3)}


def most_error(accuracy: str) -> float:
    """That one kernel may be expected to add: one that adds more could not stand in any plan."""
    return 0.0 if accuracy == "exact" else POLICY[accuracy][1]


Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]


class WrongAnswer(FissileError):
    """The compiled program differs from the reference by more than the policy allows: by `error`
    of the output's scale for `inputs`, where `allowed` is."""

    def __init__(
        self, text: str, error: float = 0.0, allowed: float = 0.0,
        inputs: Sequence[np.ndarray] = (),
    ):  # fmt: skip
        super().__init__(text)
        self.error, self.allowed, self.inputs = error, allowed, inputs


@dataclass(frozen=True)
class Report:
    """Largest errors over all inputs and outputs, relative to each output's scale (its largest
    value)."""

    error: float
    yardstick: float
    allowed: float
    judge: str

    def __str__(self) -> str:
        return (
            f"error {self.error:.1e} of scale, {self.judge} {self.yardstick:.1e}, "
            f"allowed {self.allowed:.1e}"
        )


def samples(graph: Graph, seed: int = 0) -> list[list[np.ndarray]]:
    """Inputs to check with: random, large, all equal, zero."""
    rng = np.random.default_rng(seed)
    kinds: list[Callable[[tuple[int, ...]], np.ndarray]] = [
        lambda s: rng.standard_normal(s),
        lambda s: rng.standard_normal(s) * 30,
        lambda s: np.full(s, 0.5),
        lambda s: np.zeros(s),
    ]
    return [[_sample(graph, v, make, rng) for v in graph.inputs] for make in kinds]


def _sample(
    graph: Graph, v: Value, make: Callable[..., np.ndarray], rng: np.random.Generator
) -> np.ndarray:
    dtype = v.type.dtype
    if dtype.is_float or dtype.kind == "complex":
        return np.asarray(make(v.shape)).astype(dtype.numpy)
    high = 2 if dtype.name == "bool" else _limit(graph, v)
    return np.asarray(rng.integers(0, high, v.shape)).astype(dtype.numpy)


def _limit(graph: Graph, v: Value) -> int:
    """Integers that become indices, however they are computed on, stay inside what they index."""
    reached, extents, todo = {v}, [8], [v]
    while todo:
        x = todo.pop()
        for n in graph.users.get(x, ()):
            if n.prim == "gather" and n.inputs[1] is x:
                extents.append(n.inputs[0].shape[n.attrs["axis"]])
            elif len(reached) < 64:
                fresh = [y for y in n.outputs if y not in reached and y.type.dtype.is_integer]
                reached.update(fresh)
                todo += fresh
    return max(1, min(extents[1:] or extents))


def _reference(graph: Graph, inputs: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Inputs and what they give in float64; integers become 0 where they index out of range."""
    try:
        return inputs, evaluate(graph, inputs, reference=True)
    except IndexError:
        inputs = [np.zeros_like(a) if a.dtype.kind in "iu" else a for a in inputs]
        return inputs, evaluate(graph, inputs, reference=True)


def _references(graph: Graph) -> list[tuple[list[np.ndarray], list[np.ndarray]]]:
    """Of all samples, side by side."""
    with one_thread(), ThreadPoolExecutor(usable_threads()) as pool:
        return list(pool.map(partial(_reference, graph), samples(graph)))


def check(graph: Graph, run: Run, reference_run: Run | None, accuracy: str = "default") -> Report:
    """Compare `run` with the reference on all samples. Raises WrongAnswer naming output and sizes.

    `reference_run` is an ordinary f32 engine (see `onnxruntime_run`); None: our evaluator in f32.
    """
    factor, floor = POLICY[accuracy]
    judge = "ONNX Runtime" if reference_run else "f32 evaluator"
    ordinary = reference_run or (lambda inputs: evaluate(graph, inputs))
    worst = Report(0.0, 0.0, floor, judge)
    for inputs, want in _references(graph):
        got = run(inputs)
        try:
            other = ordinary(inputs)
        except Exception:  # an engine that refuses a sample is no judge of it
            other = evaluate(graph, inputs)
        second: list[np.ndarray] = []
        for k, (name, w, g, o) in enumerate(zip(graph.output_names, want, got, other, strict=True)):
            error, yardstick = relative_error(g, w), relative_error(o, w)
            if not error <= max(floor, factor * yardstick):
                # one run can be lucky where a single element decides the scale: ask another
                second = second or evaluate(graph, inputs)
                yardstick = max(yardstick, relative_error(second[k], w))
            allowed = max(floor, factor * yardstick)
            if not error <= allowed:
                raise WrongAnswer(
                    f"output {shown(name)} differs from the reference by {error:.1e} of its scale, "
                    f"{judge} by {yardstick:.1e}, allowed {allowed:.1e}: please report this model",
                    error, allowed, inputs,
                )  # fmt: skip
            if error >= worst.error:
                worst = Report(error, yardstick, allowed, judge)
    return worst


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Largest difference over the largest finite reference value. NaN equals NaN, infinities must
    match; what the element type of `got` cannot hold, or only just, counts as infinite."""
    got = np.asarray(got)
    limit = float(np.finfo(got.dtype).max) / 4 if got.dtype.kind == "f" else np.inf
    wide = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = (_saturated(np.asarray(x).astype(wide), limit) for x in (got, want))
    if a.shape != b.shape:
        return float("inf")
    finite = np.isfinite(b)
    odd = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
    if odd.any():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(np.abs(b[finite]).max())
    difference = np.abs(a[finite] - b[finite])
    worst = float(difference.max()) if not np.isnan(difference).any() else float("inf")
    return worst / scale if scale > 0 else worst


def _saturated(x: np.ndarray, limit: float) -> np.ndarray:
    if x.dtype.kind == "c":
        return x
    return np.where(np.abs(x) > limit, np.copysign(np.inf, x), x)


def onnxruntime_run(model: bytes | str, graph: Graph) -> Run | None:
    """An ordinary run of the model by ONNX Runtime, one thread; None where it is not installed or
    refuses."""
    if importlib.util.find_spec("onnxruntime") is None:
        return None
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    try:
        session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception:
        return None
    names = list(graph.output_names)
    return lambda inputs: session.run(names, dict(zip(graph.input_names, inputs, strict=True)))
