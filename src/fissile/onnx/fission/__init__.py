"""Fission rules, one file per family. Importing this package fills the table in `onnx.rule`."""

import importlib
import pkgutil

FAMILIES = tuple(
    importlib.import_module(f"{__name__}.{module.name}")
    for module in pkgutil.iter_modules(__path__)
)
