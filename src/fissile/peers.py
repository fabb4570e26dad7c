"""Other engines as callables, for comparisons. Each is imported only when asked for.

    peer(model, feeds, threads) -> call,  call() -> outputs in model order

Every engine gets the model's own f32 weights, the same number of threads, latency settings, and
what its documentation says is its fastest way to be called again and again with the same arrays.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fissile.errors import ToolchainError, shown

Call = Callable[[], Sequence[Any]]
Feeds = Mapping[str, np.ndarray]
Model = str | bytes  # a path, or what the file holds


def peer(name: str, model: Model, feeds: Feeds, threads: int) -> Call:
    """An engine ready to be timed. Raises ToolchainError: unknown, not installed, or the engine
    cannot run the model."""
    known(name)
    try:
        call = PEERS[name](model, feeds, threads)
        call()
    except ToolchainError:
        raise
    except Exception as error:  # whatever a foreign engine raises
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise ToolchainError(f"{name} cannot run this model: {reason}") from None
    return call


def known(name: str) -> None:
    """Raises ToolchainError where no engine has this name."""
    if name not in PEERS:
        listed = ", ".join(PEERS)
        raise ToolchainError(f"cannot compare with {shown(name)}: this version knows {listed}")


def _module(name: str, packages: str, of: str = "") -> Any:
    """A package that is not ours. Raises ToolchainError with the remedy where it is missing."""
    if importlib.util.find_spec(name) is None:
        needed = f", which {of} needs," if of else ""
        raise ToolchainError(f"{name}{needed} is not installed: `pip install {packages}`")
    return importlib.import_module(name)


def _onnxruntime(model: Model, feeds: Feeds, threads: int) -> Call:
    """The CPU provider with its defaults; its threads stop spinning when a run ends, which else
    would take the time of whoever runs next."""
    runtime = _module("onnxruntime", "onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 4
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def _openvino(model: Model, feeds: Feeds, threads: int) -> Call:
    """f32 throughout, one stream, one request that is used again; inputs and outputs are shared and
    not copied."""
    vino = _module("openvino", "openvino")
    core = vino.Core()
    net = core.read_model(model)
    if net.is_dynamic():
        net.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(net, "CPU", settings).create_infer_request()

    def call() -> Sequence[Any]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return list(results.values())

    return call


def _inductor(model: Model, feeds: Feeds, threads: int) -> Call:
    """torch.compile with its default backend, on the module that onnx2torch makes of the model."""
    torch = _module("torch", "torch onnx2torch")
    convert = _module("onnx2torch", "onnx2torch", "inductor").convert
    onnx = importlib.import_module("onnx")
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    torch.set_num_threads(threads)
    module = torch.compile(convert(proto).eval())
    inputs = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> Sequence[Any]:
        with torch.inference_mode():
            results = module(*inputs)
        several = isinstance(results, tuple | list)
        return [r.numpy() for r in (results if several else (results,))]

    return call


def _mnn(model: Model, feeds: Feeds, threads: int) -> Call:
    """MNN at high precision (f32), on what its converter makes of the model."""
    mnn = _module("MNN", "MNN")
    onnx = importlib.import_module("onnx")
    proto = onnx.load_from_string(model) if isinstance(model, bytes) else onnx.load(model)
    outputs = [v.name for v in proto.graph.output]
    with tempfile.TemporaryDirectory(prefix="fissile-mnn-") as folder:
        source, converted = Path(folder) / "model.onnx", Path(folder) / "model.mnn"
        onnx.save(proto, source)
        _mnn_converted(source, converted)
        net = mnn.nn.load_module_from_file(
            str(converted), list(feeds), outputs,
            precision_mode=mnn.expr.PrecisionMode.High, thread_num=threads, shape_mutable=False,
        )  # fmt: skip
    kinds = {"float32": mnn.expr.float, "int32": mnn.expr.int, "int64": mnn.expr.int}
    inputs = [
        mnn.expr.const(a, list(a.shape), mnn.expr.NCHW, kinds[a.dtype.name]) for a in feeds.values()
    ]

    def call() -> Sequence[Any]:
        return [v.read() for v in net.onForward(inputs)]

    return call


def _mnn_converted(source: Path, target: Path) -> None:
    """Write `target`. The converter prints and may end its process: it runs in one of its own."""
    words = ["mnnconvert", "-f", "ONNX", "--modelFile", str(source), "--MNNModel", str(target)]
    code = f"import _tools, MNN; _tools.mnnconvert({[*words, '--bizCode', 'fissile']!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if not target.exists():
        lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
        raise ToolchainError(f"mnn: its converter refuses this model: {lines[-1][:300]}")


PEERS: dict[str, Callable[[Model, Feeds, int], Call]] = {
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "inductor": _inductor,
    "mnn": _mnn,
}
