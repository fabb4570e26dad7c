"""The series of `make bench`: batches, resumption, and one part of one small network whole."""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import parts
import pytest
import results
import savings
import tables
from batches import batched
from onnx import TensorProto, helper, numpy_helper
from parts import Case, keep_first_half, remember, variants

from fissile.cost.store import Place, Store, Timing
from fissile.ir.graph import Graph
from fissile.kernels.identify import identify
from fissile.onnx.load import load
from fissile.targets.cpu.target import Cpu

CASE = "case_candy_in_relu_pad"


def reshaping(rows_mixed: bool) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 24])
    shape = numpy_helper.from_array(np.array([1, 24]), "shape")
    nodes = [
        helper.make_node("Softmax", ["x"], ["s"], axis=0 if rows_mixed else -1),
        helper.make_node("Reshape", ["s", "shape"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [shape])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_batch_is_its_rows():
    wide = batched(reshaping(rows_mixed=False), 5)
    assert [d.dim_value for d in wide.graph.input[0].type.tensor_type.shape.dim] == [5, 4, 6]
    assert numpy_helper.to_array(wide.graph.initializer[0]).tolist() == [5, 24]


def test_a_batch_that_mixes_its_rows_is_refused():
    with pytest.raises(ValueError, match="its rows are not"):
        batched(reshaping(rows_mixed=True), 5)


def test_rows_are_kept_while_sources_and_settings_are_the_same(tmp_path):
    case, path = Case("net"), tmp_path / "row.json"
    assert not results.is_there(path, case, "a")
    path.write_text(json.dumps({"at": {"source": "a"}, "case": asdict(case), "row": {}}))
    assert results.is_there(path, case, "a")
    assert not results.is_there(path, case, "b")
    assert not results.is_there(path, Case("net", tune=1.0), "a")
    path.write_text(json.dumps({"at": {"source": "a"}, "case": asdict(case), "fault": "it fell"}))
    assert not results.is_there(path, case, "a")


def test_what_was_compiled_is_kept_by_case(tmp_path, monkeypatch):
    """The default and the fast one are two: neither is taken for the other."""

    class Compiled:
        def __init__(self, case):
            self.manifest = SimpleNamespace(
                facts={"selection": {"us": float(case.accuracy == "fast")}}, memory={}
            )
            report = SimpleNamespace(error=0.0, yardstick=0.0)
            self.stages = SimpleNamespace(values={"verify": report})

    def fresh(place, case, folder):
        folder.mkdir(exist_ok=True)
        (folder / "weights.bin").write_bytes(b"")
        made.append(case.accuracy)
        return Compiled(case)

    made: list[str] = []
    monkeypatch.setattr(parts.Place, "fresh", fresh)
    monkeypatch.setattr(parts.fissile, "load", lambda folder, threads: None)
    place = parts.Place(tmp_path, "a")
    cases = [Case(CASE), Case(CASE, accuracy="fast")]
    found = [place.compiled(case)[1]["selection"]["us"] for case in cases * 2]
    assert found == [0.0, 1.0, 0.0, 1.0]
    assert made == ["default", "fast"]


def test_half_of_a_store_is_what_was_measured_first(tmp_path):
    place, names = Place("here", 1, "1"), [f"k{i}" for i in range(6)]
    full, half = tmp_path / "full.sqlite", tmp_path / "half.sqlite"
    for name in names:
        Store(full, place).put({name: Timing(1.0)})
        time.sleep(0.002)
    keep_first_half(full, half)
    assert len(Store(full, place).get(names)) == 6
    assert {"k0", "k1", "k2"} <= Store(half, place).get(names).keys() <= {"k0", "k1", "k2", "k3"}


def test_what_one_store_knows_is_added_to_another(tmp_path):
    place, fresh, known = Place("here", 1, "1"), tmp_path / "a.sqlite", tmp_path / "b.sqlite"
    Store(fresh, place).put({"k0": Timing(1.0), "k1": Timing(2.0)})
    remember(fresh, known)
    assert Store(known, place).get(["k0", "k1"]).keys() == {"k0", "k1"}
    Store(fresh, place).put({"k0": Timing(9.0), "k2": Timing(3.0)})
    remember(fresh, known)  # what is known stays
    assert [Store(known, place).get([k])[k].us for k in ("k0", "k2")] == [1.0, 3.0]


def test_every_part_has_cases_and_a_section():
    for part in results.PARTS:
        assert list(results.cases(part, 1.0, 1.0))
        assert part in {name for name, _, _ in tables.SECTIONS}
    assert {("program",), ("recomputation",), ("channels-first",)} <= set(variants().values())


def convolution(channels: int, size: int, normalised: bool = False) -> Graph:
    shape = [1, channels, size, size]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy")
    weights = np.random.default_rng(1).standard_normal((channels, channels, 3, 3), np.float32)
    ones = numpy_helper.from_array(np.ones(channels, np.float32), "ones")
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], pads=[1, 1, 1, 1])]
    if normalised:
        nodes[0].output[0] = "z"
        nodes += [helper.make_node("InstanceNormalization", ["z", "ones", "ones"], ["y"])]
    constants = [numpy_helper.from_array(weights, "w"), ones]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    return load(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def test_without_winograd_no_kernel_takes_its_way():
    """Under whatever name it is offered: some also give the moments of their result."""

    def ways(without: tuple[str, ...]) -> set[tuple[str, str]]:
        cpu = Cpu(graph, without=without)
        regions = identify(graph, cpu.limits, cpu.admissible)
        offered = (c for r in regions for c in cpu.implementations(r))
        return {(c.impl, c.computed_by) for c in offered if c.computed_by == "winograd"}

    graph = convolution(64, 28, normalised=True)
    assert ways(()) == {("winograd", "winograd"), ("measured", "winograd")}
    assert ways(("winograd",)) == {("measured", "winograd")}  # its name alone is not enough
    assert not ways(variants()["winograd"])


def test_a_saving_kernel_is_held_against_direct_ones_of_its_region_and_layouts():
    graph = convolution(64, 28)
    cpu = Cpu(graph, threads=1)
    regions = identify(graph, cpu.limits, cpu.admissible)
    every = [c for r in regions for c in cpu.implementations(r)]
    (four, *_) = (c for c in every if c.impl == "winograd" and c.param["m"] == 4)
    direct = next(c for c in every if c.impl == "conv" and c.key != four.key)
    found = savings.rivalries(every, [four.key, direct.key, four.key])
    assert [(r.chosen.key, r.count) for r in found] == [(four.key, 2)]
    assert found[0].direct
    for d in found[0].direct:
        assert d.impl == "conv" and d.saving == 1
        assert (d.region.members, d.needs, d.gives) == (
            four.region.members, four.needs, four.gives,
        )  # fmt: skip
    (row,) = savings.rows(graph, [four.key, four.key], 1, "default")
    assert (row.algorithm, row.count, row.saving) == ("winograd", 2, 4.0)
    assert row.flops == 2 * 9 * 64 * 64 * 28 * 28
    assert row.us > 0 and row.direct_us > 0 and row.direct.startswith("conv")


def test_the_table_of_savings():
    def kernel(algorithm: str, us: float, direct_us: float, count: int) -> dict[str, object]:
        names = {k: k for k in ("title", "region", "how", "direct")}
        figures = {"count": count, "saving": 4.0, "flops": 2e6, "us": us, "direct_us": direct_us}
        return {"algorithm": algorithm, **names, **figures}

    found = [kernel("winograd", 10, 12, 1), kernel("winograd", 10, 40, 3),
             kernel("winograd", 5, 0, 1), kernel("strassen", 10, 11, 2)]  # fmt: skip
    row = {"part": "savings", "case": {"name": "net"}, "row": {"rows": found}}
    (section,) = (s for part, _, s in tables.SECTIONS if part == "savings")
    text = section([row])
    mean = (1.2 * 4.0**3) ** 0.25
    assert f"| net | winograd | 5 | {mean:.2f} | 1.20 | 1 |" in text
    assert "| net | strassen | 2 | 1.10 | 1.10 | - |" in text
    assert "| 4.00 | 10.0 | 40.0 | 50.0 | 4.00 |" in text
    assert "| 4.00 | 5.0 | - | - | - |" in text


@pytest.fixture
def series(tmp_path, monkeypatch, capfd):
    """Runs parts of one small network; what was printed."""
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path / "home"))

    def run(*parts):
        words = [*parts, "--only", CASE, "--tune", "0", "--seconds", "0.2"]
        words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path)]
        monkeypatch.setattr("sys.argv", ["results.py", *words])
        results.main()
        return capfd.readouterr().out

    return run


def test_a_part_of_the_series(series, tmp_path):
    assert "took" in series("latency", "memory")
    text = (tmp_path / "RESULTS.md").read_text()
    assert text.count(f"| {CASE} |") == 5  # latency twice, memory, what was compiled twice
    rows = [json.loads(p.read_text()) for p in (tmp_path / "results").glob("*/*.json")]
    assert {r["part"] for r in rows} == {"latency", "memory"} and len(rows) == 3
    for r in rows:
        assert "fault" not in r and r["at"]["commit"] and r["at"]["versions"]["onnxruntime"]
        if r["part"] == "latency":
            assert r["row"]["apart"]["onnxruntime"] < 1e-4
        else:
            mine = r["row"]["engines"]["fissile"]
            assert 0 < mine["mapped"] <= mine["peak"]
    again = series("latency")
    assert "2 of 2 rows are there" in again and "took" not in again


def test_a_fault_is_a_row(series, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "no-such-compiler" in series("untuned")
    assert "no-such-compiler" in (tmp_path / "RESULTS.md").read_text()


def test_spinners_end_with_their_block():
    with parts._spinning():
        (first, second) = running = _children()
        assert first != second
    assert not set(running) & set(_children())


def _children() -> list[int]:
    task = Path(f"/proc/self/task/{os.getpid()}/children")
    return [int(n) for n in task.read_text().split()]


def test_slow_downs_are_means_of_pairs_and_ratios_are_beside(monkeypatch):
    """Ours 10 us alone, 20 and 40 beside; a peer 30 alone, 60 beside: 3 and 2 times slower."""
    busy, beside = [False], iter([20.0, 40.0])

    @contextmanager
    def spinning():
        busy[0] = True
        yield
        busy[0] = False

    def mean_us(call, seconds):
        if call == "peer":
            return 60.0 if busy[0] else 30.0
        return next(beside) if busy[0] else 10.0

    place = SimpleNamespace(compiled=lambda case: (None, {}), model=lambda case: None)
    monkeypatch.setattr(parts, "PHASES", 2)
    monkeypatch.setattr(parts, "engines", lambda *_: {"fissile": "ours", "peer": "peer"})
    monkeypatch.setattr(parts, "_spinning", spinning)
    monkeypatch.setattr(parts, "_mean_us", mean_us)
    found = parts.neighbours(place, Case("net"))
    assert found["slower"] == {"fissile": 3.0, "peer": 2.0}
    assert found["spread"] == {"fissile": [2.0, 4.0], "peer": [2.0, 2.0]}
    assert found["ratio"] == {"fissile": 1.0, "peer": 2.0}
