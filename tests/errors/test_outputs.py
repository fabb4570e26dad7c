"""What a command leaves behind: the whole new thing, or the old one untouched."""

from __future__ import annotations

import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from models import model_of
from onnx import helper

import fissile
from fissile import compile as module_or_function
from fissile.cli import _write_npz
from fissile.errors import ToolchainError
from fissile.targets.cpu import harness
from fissile.verify import WrongAnswer

MODEL = model_of([helper.make_node("Relu", ["x"], ["y"])], {"x": [4]}, ["y"])


def refuse(*_: object) -> None:
    raise WrongAnswer("output 'y' differs")


def test_a_refused_model_leaves_no_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(module_or_function.__globals__, "check", refuse)
    with pytest.raises(WrongAnswer):
        fissile.compile(MODEL, tune=0, folder=tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_a_refused_model_leaves_the_older_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fissile.compile(MODEL, tune=0, folder=tmp_path / "m")
    before = (tmp_path / "m" / "manifest.json").read_bytes()
    monkeypatch.setitem(module_or_function.__globals__, "check", refuse)
    with pytest.raises(WrongAnswer):
        fissile.compile(MODEL, tune=0, folder=tmp_path / "m")
    assert (tmp_path / "m" / "manifest.json").read_bytes() == before
    assert fissile.load(tmp_path / "m")(np.array([-1, 0, 1, 2], np.float32)).tolist() == [
        0,
        0,
        1,
        2,
    ]


@pytest.mark.parametrize("stage", ["check", "emit", "build", "tune", "load_artifact"])
def test_a_failed_compilation_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Whatever fails, and an interrupt too."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setitem(module_or_function.__globals__, stage, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fissile.compile(MODEL, tune=0)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_timing_program_does_not_stop_the_compilation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every time: the plan is the cost model's, and nothing is kept about the kernels."""
    killed = tmp_path / "runner"
    killed.write_text("#!/bin/sh\nkill -9 $$\n")
    killed.chmod(0o755)
    monkeypatch.setattr(harness, "build_runner", lambda toolchain: killed)
    store = tmp_path / "times.sqlite"
    with pytest.warns(UserWarning, match=r"killed \(signal 9\), twice"):
        model = fissile.compile(MODEL, tune=5, threads=1, store=store)
    assert model(np.array([-1, 0, 1, 2], np.float32)).tolist() == [0, 0, 1, 2]
    with sqlite3.connect(store) as db:
        assert db.execute("select count(*) from time").fetchone() == (0,)


def test_an_older_result_is_lost_only_to_a_whole_new_one(tmp_path: Path) -> None:
    path = tmp_path / "r.npz"
    _write_npz(path, {"y": np.arange(3)})
    with pytest.raises(ValueError, match="Object arrays"):
        _write_npz(path, {"y": np.array([object()])})
    with np.load(path) as kept:
        assert kept["y"].tolist() == [0, 1, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["r.npz"]
    with pytest.raises(ToolchainError, match="folder"):
        _write_npz(tmp_path, {"y": np.arange(3)})
