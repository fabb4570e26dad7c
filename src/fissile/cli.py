"""The command line.                                                          (design, section 15)

Exit status: 0; 1 with one clear message for a fault of model, target or tool chain; 2 for wrong
usage. `--json` prints one object on stdout; everything else goes to stderr then.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import onnx
from cyclopts import App, CycloptsError, Parameter

from fissile import arguments
from fissile.artifact.executable import Executable
from fissile.artifact.load import load as load_artifact
from fissile.artifact.manifest import Tensor
from fissile.artifact.write import check_target, disk_fault
from fissile.bench import interleaved, ours, random_feeds
from fissile.compile import compile as compile_model
from fissile.console import note, number, own_stdout, progress, table, write_json
from fissile.cost.store import home
from fissile.doctor import examine
from fissile.errors import FissileError, ToolchainError, located, shown
from fissile.inspection import STAGES, inspect_artifact, inspect_model
from fissile.onnx.load import load as load_model
from fissile.onnx.save import save as save_model
from fissile.peers import PEERS, known, peer
from fissile.rewrite.rules import RULES
from fissile.select.spellings import for_runtimes
from fissile.targets.cpu.libraries import LIBRARIES

app = App(
    name="fissile", help="Compile an ONNX network into the fastest C++ program for this machine."
)

Shape = Annotated[list[str] | None, Parameter("--shape", negative=(), help="NAME=1,3,224,224")]
Threads = Annotated[int | None, Parameter("--threads", help="default: one per processor")]
Json = Annotated[bool, Parameter("--json", negative=(), help="one JSON object on stdout")]
Target = Annotated[str, Parameter("--target", help="cpu")]
TUNE_S = "60"


@app.command
def compile(
    model: str,
    /,
    *,
    output: Annotated[
        str | None,
        Parameter(["--output", "-o"], help="folder; default: MODEL.fissile, an old one replaced"),
    ] = None,
    target: Target = "cpu",
    shape: Shape = None,
    threads: Threads = None,
    tune: Annotated[str, Parameter("--tune", help="0 (model only), seconds, or full")] = TUNE_S,
    accuracy: Literal["exact", "default", "fast"] = "default",
    store: Annotated[str | None, Parameter("--store", help="file of measured times")] = None,
    verify: Annotated[bool, Parameter("--verify", negative="--no-verify")] = True,
    libraries: Annotated[
        bool, Parameter("--libraries", negative="--no-libraries", help="may kernels call these?")
    ] = True,
    json: Json = False,
) -> None:
    """Compile MODEL.onnx into a folder: C++ source, weights and a library that is ready to load."""
    folder = output or f"{Path(model).name.removesuffix('.onnx') or 'model'}.fissile"
    check_target(Path(folder))  # now, and not after minutes of tuning
    exe = _compiled(
        model,
        target=target,
        shapes=arguments.shapes(shape),
        threads=arguments.threads(threads),
        tune=arguments.tune(tune),
        accuracy=accuracy,
        store=store,
        verify=verify,
        folder=folder,
        without=() if libraries else tuple(LIBRARIES),
    )
    facts = _report(exe, folder)
    if json:
        write_json(facts)
        return
    rows = [(k, v) for k, v in facts["selection"].items() if k not in ("seconds", "choices")]
    rows += [*facts["memory"].items(), ("accuracy", facts["accuracy"] or "not verified")]
    table(("", ""), rows, title=f"{model} -> {folder}")


@app.command
def run(
    model: str,
    /,
    *,
    input: Annotated[
        list[str] | None, Parameter("--input", negative=(), help="NAME=FILE.npy")
    ] = None,
    output: Annotated[str | None, Parameter(["--output", "-o"], help="OUT.npz")] = None,
    shape: Shape = None,
    threads: Threads = None,
    json: Json = False,
) -> None:
    """Run a compiled folder or MODEL.onnx; inputs that are not given are random."""
    exe = _opened(model, arguments.shapes(shape), arguments.threads(threads))
    given = arguments.given(exe.inputs, input or [])
    results = exe.run({**random_feeds(exe.inputs), **given})
    if output is not None:
        _write_npz(Path(output), results)
    facts = {
        "random_inputs": [t.name for t in exe.inputs if t.name not in given],
        "outputs": [_described(t, results[t.name]) for t in exe.outputs],
        "file": output,
    }
    if json:
        write_json(facts)
        return
    rows = [
        (shown(r["name"]), r["type"], r["least"], r["mean"], r["largest"]) for r in facts["outputs"]
    ]
    table(("output", "type", "least", "mean", "largest"), rows)


@app.command
def bench(
    model: str,
    /,
    *,
    against: Annotated[str | None, Parameter("--against", help=",".join(PEERS))] = None,
    onnx_model: Annotated[
        str | None, Parameter("--model", help="the ONNX file of a folder")
    ] = None,
    shape: Shape = None,
    threads: Threads = None,
    seconds: Annotated[float, Parameter("--seconds")] = 4.0,
    json: Json = False,
) -> None:
    """Time a compiled folder or MODEL.onnx, interleaved with other engines."""
    peers = [p for p in (against or "").split(",") if p]
    source, seconds = _bench_source(model, onnx_model, peers), arguments.seconds(seconds)
    exe = _opened(model, arguments.shapes(shape), arguments.threads(threads))
    feeds = random_feeds(exe.inputs)
    engines = {"fissile": ours(exe, feeds)}
    engines |= {p: peer(p, source, feeds, exe.threads) for p in peers if source}
    with progress() as update:
        times = interleaved(engines, seconds, progress=update)
    if json:
        engine_facts = {name: asdict(t) for name, t in times.items()}
        write_json({"threads": exe.threads, "engines": engine_facts})
        return
    columns = ("engine", "median ms", "least ms", "time relative to ours", "quartiles", "calls")
    rows = [
        (name, t.median_us / 1e3, t.least_us / 1e3, f"{t.ratio:.2f}",
         f"{t.low:.2f} to {t.high:.2f}", t.calls) for name, t in times.items()
    ]  # fmt: skip
    table(columns, rows, title=f"{exe.threads} threads")


@app.command
def fission(
    model: str,
    /,
    *,
    output: Annotated[str, Parameter(["--output", "-o"], help="OUT.onnx")],
    optimize: Annotated[bool, Parameter("--optimize", negative=())] = False,
    shape: Shape = None,
    json: Json = False,
) -> None:
    """Write the primitive graph of MODEL.onnx as ONNX that any runtime executes; with --optimize
    the graph that rewriting finds cheapest there, as operators."""
    graph = load_model(model, arguments.shapes(shape))
    if optimize:
        graph = for_runtimes(graph, RULES.values())
    made = save_model(graph, whole=optimize)
    _write_onnx(made, Path(output))
    operators = len(made.graph.node)
    facts = {"primitives": len(graph.primitives), "operators": operators, "file": output}
    if json:
        write_json(facts)
    else:
        note(f"{output}: {len(graph.primitives)} primitives as {operators} operators")


@app.command
def inspect(
    model: str,
    /,
    *,
    target: Target = "cpu",
    shape: Shape = None,
    stage: Annotated[str | None, Parameter("--stage", help="|".join(STAGES))] = None,
    json: Json = False,
) -> None:
    """Show what a stage made of MODEL.onnx or of a compiled folder."""
    if stage is not None and stage not in STAGES:
        raise arguments.UsageError(f"--stage is one of {', '.join(STAGES)}, not {stage!r}")
    stages = STAGES if stage is None else (stage,)
    path = Path(model)
    if path.is_dir():
        facts = inspect_artifact(path, stages)
    else:
        facts = inspect_model(model, target, arguments.shapes(shape), stages)
    if json:
        write_json(facts)
        return
    for name, stage_facts in facts.items():
        figures = {k: v for k, v in stage_facts.items() if k not in ("lines", "choices")}
        print(f"{name}: " + ", ".join(f"{k} {_flat(v)}" for k, v in figures.items()))
        if stage is not None:
            print("\n".join(stage_facts["lines"]))


@app.command
def doctor(*, json: Json = False) -> None:
    """Check compiler, processor, calibration, store and optional packages."""
    facts = examine()
    if json:
        write_json(facts)
    else:
        rows = [(topic, k, _flat(v)) for topic, part in facts.items() for k, v in part.items()]
        table(("", "", ""), rows)
    for topic in ("compiler", "home"):
        if fault := facts[topic]["fault"]:
            raise ToolchainError(fault)


# ---------------------------------------------------------------- work


def _compiled(model: str, **options: Any) -> Executable:
    with progress() as update:
        return compile_model(model, progress=update, **options)


def _opened(model: str, shapes: Mapping[str, Sequence[int]], threads: int | None) -> Executable:
    """A compiled folder, or an ONNX file compiled for now, by the cost model and known times
    alone."""
    if Path(model).is_dir():
        return load_artifact(model, threads)
    return _compiled(model, shapes=shapes, threads=threads, tune="0", verify=False)


def _bench_source(model: str, onnx_model: str | None, peers: Sequence[str]) -> str | None:
    """The ONNX file that the peers run."""
    source = onnx_model or (None if Path(model).is_dir() else model)
    for name in peers:
        known(name)
        if source is None:
            raise arguments.UsageError(
                f"--against {name} needs the ONNX file: give it with --model"
            )
    return source


def _report(exe: Executable, folder: str) -> dict[str, Any]:
    """What `compile --json` says."""
    facts = exe.manifest.facts
    stages = getattr(exe, "stages", None)
    check = stages.values.get("verify") if stages else None
    return {
        "folder": folder,
        "inputs": [_signature(t) for t in exe.inputs],
        "outputs": [_signature(t) for t in exe.outputs],
        "threads": exe.threads,
        "selection": facts.get("selection", {}),
        "memory": exe.manifest.memory,
        "accuracy": str(check) if check is not None else None,
        "errors": asdict(check) if check is not None else None,
    }


def _signature(t: Tensor) -> dict[str, Any]:
    return {"name": t.name, "dtype": t.type.dtype.name, "shape": list(t.shape)}


def _described(t: Tensor, array: np.ndarray) -> dict[str, Any]:
    wide = array.astype(np.float64) if array.size and array.dtype.kind != "c" else None
    figures = {"least": None, "mean": None, "largest": None}
    if wide is not None:
        figures = {
            "least": float(wide.min()),
            "mean": float(wide.mean()),
            "largest": float(wide.max()),
        }
    return {"name": t.name, "type": str(t.type), **figures}


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` that takes its name if the body ends well, so that an older file is lost
    only to a whole new one. Devices and pipes are written as they are. Raises ToolchainError."""
    if path.is_dir():
        raise ToolchainError(f"cannot write {located(path)}: it is a folder, name a file")
    plain = path.is_file() or not path.exists()
    part = path.with_name(f".{path.name[:100]}.{os.getpid()}.part") if plain else path
    try:
        yield part
        if plain:
            os.replace(part, path)
    except OSError as error:
        raise disk_fault(error, path) from None
    finally:
        if plain:
            with suppress(OSError):
                part.unlink(missing_ok=True)


def _write_npz(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """An .npz whose keys are the output names, whatever they are."""
    with (
        _replacing(path) as part,
        zipfile.ZipFile(part, "w", zipfile.ZIP_STORED, allowZip64=True) as archive,
    ):
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _write_onnx(model: onnx.ModelProto, path: Path) -> None:
    """Beyond protobuf's two gigabytes the data goes into a file beside."""
    large = model.ByteSize() >= 2**31 - 2**20
    with _replacing(path) as part:
        onnx.save_model(model, part, save_as_external_data=large, location=f"{path.name}.data")


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{k}={number(v)}" for k, v in value.items())
    if isinstance(value, list | tuple):
        return " ".join(number(v) for v in value)
    return number(value)


# ---------------------------------------------------------------- main


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line; the exit status."""
    tokens = list(sys.argv[1:] if words is None else words)
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *rest, **more: note(f"warning: {message}")
        try:
            with own_stdout():
                return _dispatch(tokens)
        except FissileError as error:
            note(f"error: {error}")
            return 1
        except KeyboardInterrupt:
            note("interrupted; what was measured is kept")
            return 130
        except BrokenPipeError:
            return 141
        except Exception as error:
            note(f"error: {_internal(error)}")
            return 1


def _dispatch(tokens: list[str]) -> int:
    if not tokens:
        app.help_print([])
        return 2
    try:
        command, bound, _ = app.parse_args(tokens, print_error=False, exit_on_error=False)
        command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except (CycloptsError, arguments.UsageError) as error:
        note(f"usage error: {error}\nTry `fissile --help`.")
        return 2
    return 0


def _internal(error: Exception) -> str:
    """A fault of this program: one line for the user, the traceback in a file."""
    if isinstance(error, MemoryError):
        return "out of memory: the model at these shapes needs more than this machine has"
    if isinstance(error, OSError) and error.filename:
        return f"{located(error.filename)}: {error.strerror}"
    try:
        path = home() / "logs" / f"fault-{os.getpid()}.log"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(traceback.format_exc())
    except (OSError, FissileError):
        return f"internal fault, please report it: {type(error).__name__}: {error}"
    return f"internal fault, please report it with {path}: {type(error).__name__}: {error}"


if __name__ == "__main__":
    sys.exit(main())
