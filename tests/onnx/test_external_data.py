"""Tensors in files next to the model: read where they lie in its folder, refused elsewhere."""

from __future__ import annotations

import os

import numpy as np
import onnx
import pytest
from models import model_of, node, values
from onnx import TensorProto, helper

from fissile.errors import ModelError
from fissile.onnx.load import load

WEIGHTS = np.arange(12, dtype=np.float32).reshape(3, 4)


def external(location: str, **place) -> onnx.ModelProto:
    tensor = TensorProto(
        name="w", dims=WEIGHTS.shape, data_type=1, data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": location, **place}.items():
        tensor.external_data.add(key=key, value=str(value))
    model = model_of([node("Add", "x w", "y", "plus")], {"x": (3, 4)}, ["y"])
    model.graph.initializer.append(tensor)
    return model


def written(folder, model, name="m.onnx"):
    path = folder / name
    path.write_bytes(model.SerializeToString())
    return path


def test_data_beside_the_model(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"junk" + WEIGHTS.tobytes() + b"tail")
    path = written(tmp_path, external("w.bin", offset=4, length=WEIGHTS.nbytes))
    x = np.ones((3, 4), np.float32)
    for source in (path, str(path)):
        (y,) = values(load(source), {"x": x})
        np.testing.assert_array_equal(y, WEIGHTS + 1)


def test_onnx_writes_what_we_read(tmp_path):
    model = model_of([node("Add", "x w", "y")], {"x": (3, 4)}, ["y"], {"w": WEIGHTS})
    onnx.save(
        model, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="d"
    )
    (y,) = values(load(tmp_path / "m.onnx"), {"x": np.zeros((3, 4), np.float32)})
    np.testing.assert_array_equal(y, WEIGHTS)


def test_packed_integers(tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes([0x21, 0x43]))
    model = external("w.bin")
    tensor = model.graph.initializer[0]
    tensor.data_type, tensor.dims[:] = TensorProto.INT4, [4]
    del model.graph.node[:]
    model.graph.node.append(helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT))
    model.opset_import[0].version = 21
    (y,) = values(load(written(tmp_path, model)), {"x": np.zeros((3, 4), np.float32)})
    np.testing.assert_array_equal(y, [1, 2, 3, 4])


@pytest.mark.parametrize(
    "location",
    ["../w.bin", "sub/../../w.bin", "/etc/hostname", "", "a\0b", "link.bin", "folder/w.bin"],
)
def test_paths_that_leave_the_folder(tmp_path, location):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    os.symlink(tmp_path / "w.bin", folder / "link.bin")
    os.symlink(tmp_path, folder / "folder")
    with pytest.raises(ModelError, match=r"'w'.*(folder|inside)"):
        load(written(folder, external(location)))


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ({"offset": 8}, "needs 48 bytes"),
        ({"length": 40}, "needs 48 bytes"),
        ({"offset": -4}, "offset"),
        ({"offset": "4e9"}, "offset"),
        ({"length": 10**30}, "length"),
    ],
)
def test_places_outside_the_file(tmp_path, place, says):
    (tmp_path / "w.bin").write_bytes(WEIGHTS.tobytes())
    with pytest.raises(ModelError, match=says):
        load(written(tmp_path, external("w.bin", **place)))


def test_missing_file_and_missing_folder(tmp_path):
    with pytest.raises(ModelError, match=r"'gone.bin', which does not exist"):
        load(written(tmp_path, external("gone.bin")))
    with pytest.raises(ModelError, match=r"load the model by its path"):
        load(external("w.bin").SerializeToString())
