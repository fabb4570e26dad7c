"""The command line: exit statuses, what goes to stdout and what to stderr, never a traceback."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from fissile import cli
from fissile.errors import ToolchainError


@pytest.fixture(autouse=True)
def fissile_home(monkeypatch, tmp_path_factory):
    """One home for all: the machine is calibrated once."""
    monkeypatch.setenv("FISSILE_HOME", str(tmp_path_factory.getbasetemp() / "cli-home"))


def model_file(path, batch=2, name="x"):
    x = helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, 8])
    y = helper.make_tensor_value_info("y=1", TensorProto.FLOAT, [batch, 4])
    w = helper.make_tensor("w", TensorProto.FLOAT, [8, 4], np.linspace(-1, 1, 32).tolist())
    nodes = [
        helper.make_node("MatMul", [name, "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y=1"]),
    ]
    graph = helper.make_graph(nodes, "tiny", [x], [y], [w])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return str(path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return model_file(tmp_path_factory.mktemp("tiny") / "tiny.onnx")


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """The tiny model, compiled by the command line."""
    patch = pytest.MonkeyPatch()
    patch.setenv("FISSILE_HOME", str(tmp_path_factory.getbasetemp() / "cli-home"))
    target = tmp_path_factory.mktemp("compiled") / "tiny"
    assert cli.main(["compile", tiny, "-o", str(target), "--tune", "2", "--threads", "1"]) == 0
    patch.undo()
    return str(target)


def reference(x):
    return np.maximum(x @ np.linspace(-1, 1, 32, dtype=np.float32).reshape(8, 4), 0)


# ---------------------------------------------------------------- usage: status 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], ""),
        (["frobnicate"], "frobnicate"),
        (["compile"], "model"),
        (["compile", "m.onnx", "--frobnicate"], "--frobnicate"),
        (["compile", "m.onnx", "--tune", "soon"], "--tune 'soon' is neither 0, seconds nor full"),
        (["compile", "m.onnx", "--tune", "-1"], ""),
        (["compile", "m.onnx", "--tune", "nan"], "neither"),
        (["compile", "m.onnx", "--accuracy", "perfect"], "perfect"),
        (["compile", "m.onnx", "--threads", "0"], "--threads 0 is not between"),
        (["compile", "m.onnx", "--threads", "two"], "two"),
        (["compile", "m.onnx", "--shape", "x"], "--shape 'x' is not like NAME=1,3,224,224"),
        (["compile", "m.onnx", "--shape", "x=1,-3"], "is not like"),
        (["compile", "m.onnx", "--shape", "x=1,²"], "is not like"),
        (["inspect", "m.onnx", "--stage", "lunch"], "--stage is one of primitives, rewrites"),
        (["fission", "m.onnx"], "output"),
    ],
)
def test_wrong_usage(words, message, capfd):
    assert cli.main(words) == 2
    captured = capfd.readouterr()
    assert message.lower() in captured.err.lower()
    assert "Traceback" not in captured.err
    if words:
        assert not captured.out and "Try `fissile --help`" in captured.err


def test_help_and_version(capfd):
    assert cli.main(["--help"]) == 0
    out = capfd.readouterr().out
    assert all(c in out for c in ("compile", "run", "bench", "fission", "inspect", "doctor"))
    assert cli.main(["compile", "--help"]) == 0
    out = capfd.readouterr().out
    for option in ("--target", "--shape", "--threads", "--tune", "--accuracy", "--store", "--json"):
        assert option in out
    assert "--no-verify" in out and "-o" in out


# ---------------------------------------------------------------- faults: status 1


def fails(words, capfd, *parts):
    assert cli.main([str(w) for w in words]) == 1
    captured = capfd.readouterr()
    assert not captured.out and "Traceback" not in captured.err
    assert captured.err.startswith("error: "), captured.err
    assert all(p in captured.err for p in parts), captured.err


def test_home_of_nobody(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("FISSILE_HOME", "~nobody-of-this-name/x")
    fails(["compile", tiny, "-o", tmp_path / "m"], capfd, "FISSILE_HOME", "Set FISSILE_HOME")
    fails(["doctor"], capfd, "FISSILE_HOME", "Set FISSILE_HOME")
    monkeypatch.setattr(cli, "_dispatch", lambda tokens: 1 // 0)
    fails(["compile"], capfd, "internal fault", "ZeroDivisionError")  # there is no place for it


@pytest.mark.parametrize("command", ["compile", "run", "bench", "inspect", "fission"])
def test_missing_and_broken_models(command, tmp_path, capfd):
    more = ["-o", tmp_path / "p.onnx"] if command == "fission" else []
    fails([command, tmp_path / "nowhere.onnx", *more], capfd, "nowhere.onnx")
    (tmp_path / "text.onnx").write_text("hello, I am text")
    fails([command, tmp_path / "text.onnx", *more, "--shape", "x=1"], capfd, "text.onnx")
    assert not (tmp_path / "p.onnx").exists()


def test_unknown_target(tiny, tmp_path, capfd):
    fails(["compile", tiny, "--target", "abacus", "-o", tmp_path / "m"], capfd, "abacus", "cpu")


def test_no_compiler(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    fails(["compile", tiny, "-o", tmp_path / "m"], capfd, "CXX is '/nowhere/c++'")
    assert cli.main(["doctor"]) == 1
    assert "error: CXX" in capfd.readouterr().err


def test_target_folder_is_checked_before_tuning(tiny, tmp_path, capfd, monkeypatch):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("")
    monkeypatch.setattr(cli, "compile_model", None)
    fails(["compile", tiny, "-o", tmp_path / "mine"], capfd, "something else")


def test_internal_fault_has_no_traceback(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(cli, "compile_model", lambda *a, **k: 1 / 0)
    fails(["compile", tiny, "-o", tmp_path / "m"], capfd, "internal fault", "ZeroDivisionError")
    log = next((tmp_path.parent / "cli-home" / "logs").glob("fault-*"))
    assert "ZeroDivisionError" in log.read_text()


def test_interrupt(tiny, tmp_path, capfd, monkeypatch):
    def interrupted(*rest, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "compile_model", interrupted)
    assert cli.main(["compile", tiny, "-o", str(tmp_path / "m")]) == 130
    assert "measured is kept" in capfd.readouterr().err


def test_warnings_are_lines(tiny, tmp_path, capfd, monkeypatch):
    """A damaged store costs a warning and no more."""
    store = tmp_path / "store"
    store.write_bytes(b"garbage, long enough to be no database" * 50)
    words = [
        "compile",
        tiny,
        "-o",
        str(tmp_path / "m"),
        "--tune",
        "0",
        "--store",
        str(store),
        "--json",
    ]
    assert cli.main(words) == 0
    captured = capfd.readouterr()
    assert "warning: " in captured.err and "damaged" in captured.err
    assert json.loads(captured.out)["folder"] == str(tmp_path / "m")


# ---------------------------------------------------------------- the commands


def test_compile_json(tiny, tmp_path, capfd):
    words = ["compile", tiny, "-o", str(tmp_path / "m"), "--tune", "0", "--threads", "1", "--json"]
    assert cli.main(words) == 0
    captured = capfd.readouterr()
    facts = json.loads(captured.out)
    assert facts["inputs"] == [{"name": "x", "dtype": "f32", "shape": [2, 8]}]
    assert facts["threads"] == 1 and facts["selection"]["kernels"] >= 1
    assert facts["errors"]["error"] <= facts["errors"]["allowed"]
    assert "\x1b" not in captured.err
    assert (tmp_path / "m" / "model.cpp").exists()


def test_compile_without_output_names_a_folder(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["compile", tiny, "--tune", "0", "--no-verify"]) == 0
    assert (tmp_path / "tiny.fissile" / "manifest.json").exists()
    assert "not verified" in capfd.readouterr().out


def test_shape(tmp_path, capfd):
    dynamic = model_file(tmp_path / "d.onnx", batch="n", name="a=b")
    fails(["compile", dynamic, "-o", tmp_path / "m"], capfd, "a=b", "--shape")
    words = [
        "compile",
        dynamic,
        "-o",
        str(tmp_path / "m"),
        "--shape",
        "a=b=3,8",
        "--tune",
        "0",
        "--json",
    ]
    assert cli.main(words) == 0
    assert json.loads(capfd.readouterr().out)["inputs"][0]["shape"] == [3, 8]


@pytest.mark.parametrize("from_model", [True, False])
def test_run(from_model, tiny, folder, tmp_path, capfd):
    x = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    np.save(tmp_path / "a=b.npy", x)
    words = ["run", tiny if from_model else folder, "--input", f"x={tmp_path}/a=b.npy"]
    assert cli.main([*words, "-o", str(tmp_path / "out.npz"), "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["random_inputs"] == []
    saved = np.load(tmp_path / "out.npz")
    assert saved.files == ["y=1"]
    np.testing.assert_allclose(saved["y=1"], reference(x), atol=1e-6)
    assert abs(facts["outputs"][0]["mean"] - reference(x).mean()) < 1e-6


def test_run_with_random_inputs(folder, capfd):
    assert cli.main(["run", folder]) == 0
    assert "y=1" in capfd.readouterr().out


def test_run_refuses_wrong_inputs(folder, tmp_path, capfd):
    np.save(tmp_path / "x.npy", np.zeros((3, 8), np.float32))
    fails(["run", folder, "--input", f"x={tmp_path}/x.npy"], capfd, "f32[2,8]", "f32[3,8]")
    fails(["run", folder, "--input", f"z={tmp_path}/x.npy"], capfd, "no input is called 'z'", "'x'")
    fails(["run", folder, "--input", f"x={tmp_path}/none.npy"], capfd, "none.npy", "No such file")
    np.save(tmp_path / "o.npy", np.array([{}], object), allow_pickle=True)
    fails(["run", folder, "--input", f"x={tmp_path}/o.npy"], capfd, "cannot read")
    fails(["run", folder, "-o", tmp_path / "no" / "dir.npz"], capfd, "cannot write")
    assert cli.main(["run", folder, "--input", "x"]) == 2


def test_bench(tiny, folder, capfd):
    words = ["bench", folder, "--model", tiny, "--against", "onnxruntime", "--seconds", "0.3"]
    assert cli.main([*words, "--threads", "1", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["threads"] == 1 and set(facts["engines"]) == {"fissile", "onnxruntime"}
    ours, theirs = facts["engines"]["fissile"], facts["engines"]["onnxruntime"]
    assert ours["ratio"] == ours["low"] == ours["high"] == 1
    assert theirs["low"] <= theirs["ratio"] <= theirs["high"]
    assert 0 < ours["least_us"] <= ours["median_us"] and ours["calls"] == theirs["calls"] >= 9
    assert cli.main(words) == 0
    assert "onnxruntime" in capfd.readouterr().out


def test_bench_refusals(folder, capfd):
    fails(["bench", folder, "--against", "abacus"], capfd, "abacus", "onnxruntime")
    assert cli.main(["bench", folder, "--against", "onnxruntime"]) == 2
    assert "--model" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("peer", "package"),
    [
        ("onnxruntime", "onnxruntime"),
        ("openvino", "openvino"),
        ("inductor", "torch"),
        ("mnn", "MNN"),
    ],
)
def test_bench_without_the_peer(tiny, folder, capfd, monkeypatch, peer, package):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: None if n == package else find(n))
    words = ["bench", folder, "--model", tiny, "--against", peer]
    fails(words, capfd, f"{package} is not installed", "pip install")


def test_fission(tiny, tmp_path, capfd):
    out = tmp_path / "p.onnx"
    assert cli.main(["fission", tiny, "-o", str(out)]) == 0
    onnx.checker.check_model(onnx.load(out), full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    capfd.readouterr()
    (y,) = onnxruntime.InferenceSession(out).run(["y=1"], {"x": x})
    np.testing.assert_allclose(y, reference(x), atol=1e-6)
    fails(["fission", tiny, "-o", tmp_path / "no" / "p.onnx"], capfd, "cannot write")


@pytest.mark.parametrize("stage", ["primitives", "rewrites", "regions", "kernels", "plan"])
def test_inspect(stage, tiny, folder, capfd):
    for model in (tiny, folder):
        assert cli.main(["inspect", model, "--stage", stage]) == 0
        assert capfd.readouterr().out.startswith(f"{stage}: ")
        assert cli.main(["inspect", model, "--json"]) == 0
        facts = json.loads(capfd.readouterr().out)
        assert set(facts) == {"primitives", "rewrites", "regions", "kernels", "plan"}
        assert facts["primitives"]["count"] == 2
        assert facts["plan"]["lines"]


def test_doctor(capfd):
    assert cli.main(["doctor", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["compiler"]["fault"] is None and facts["compiler"]["peak_gflops"] > 1
    assert facts["home"]["store"].endswith(".sqlite") and "onnxruntime" in facts["extras"]
    assert cli.main(["doctor"]) == 0


def test_as_a_process(folder, tmp_path):
    """The installed command: exit status, and a pipe that closes early."""
    command = [sys.executable, "-m", "fissile.cli"]
    good = subprocess.run([*command, "run", folder, "--json"], capture_output=True, text=True)
    assert good.returncode == 0 and json.loads(good.stdout) and not good.stderr
    bad = subprocess.run([*command, "run", tmp_path / "none"], capture_output=True, text=True)
    assert (bad.returncode, bad.stdout) == (1, "") and bad.stderr.count("\n") == 1
    usage = subprocess.run([*command, "run"], capture_output=True, text=True)
    assert usage.returncode == 2
    read, write = os.pipe()
    os.close(read)
    piped = subprocess.run(
        [*command, "inspect", folder], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert "Traceback" not in piped.stderr and piped.returncode != 0


def test_libraries_do_not_write_to_stdout(capfd, monkeypatch):
    """As a solver's banner would."""

    def examine():
        os.write(1, b"banner")
        return {"compiler": {"fault": None}, "home": {"fault": None}}

    monkeypatch.setattr(cli, "examine", examine)
    assert cli.main(["doctor", "--json"]) == 0
    captured = capfd.readouterr()
    assert json.loads(captured.out) and not captured.err


def test_progress_vanishes_where_stderr_is_no_terminal(capfd):
    with cli.progress() as update:
        update("measuring kernel 1 of 2", 0.5, 65.0)
    captured = capfd.readouterr()
    assert not captured.out and not captured.err


def test_toolchain_errors_are_errors_of_the_user():
    assert issubclass(ToolchainError, cli.FissileError)
