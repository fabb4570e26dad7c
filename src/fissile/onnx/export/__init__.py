"""ONNX forms of the primitives, one file per family. Importing them fills `writer.EXPORTS`."""

import importlib
import pkgutil

FAMILIES = tuple(
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
)
