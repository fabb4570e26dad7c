"""Fissile compiles an ONNX network into the fastest C++ program that can be proved and measured for
a machine.

    exe = fissile.compile("m.onnx", shapes={"x": (1, 3, 224, 224)}, threads=2)
    y = exe(x)
    exe.save("m.fissile"); exe = fissile.load("m.fissile")
"""

from fissile.artifact.executable import Executable
from fissile.artifact.load import load
from fissile.compile import compile
from fissile.errors import FissileError, InputError, ModelError, TargetError, ToolchainError

__version__ = "0.1.0"
__all__ = [
    "Executable", "FissileError", "InputError", "ModelError", "TargetError", "ToolchainError",
    "compile", "load",
]  # fmt: skip
