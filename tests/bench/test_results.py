"""The series of `make bench`: batches, resumption, and one part of one small network whole."""

from __future__ import annotations

import json
from dataclasses import asdict

import numpy as np
import onnx
import pytest
import results
import tables
from batches import batched
from onnx import TensorProto, helper, numpy_helper
from parts import Case, variants

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


def test_every_part_has_cases_and_a_section():
    for part in results.PARTS:
        assert list(results.cases(part, 1.0, 1.0))
        assert part in {name for name, _, _ in tables.SECTIONS}
    assert {("program",), ("recomputation",), ("channels-first",)} <= set(variants().values())


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
