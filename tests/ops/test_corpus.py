"""Small networks after reported faults of other compilers, where that corpus is at hand.

Oracle: expected values that the corpus works out with numpy from the ONNX specification.
"""

from __future__ import annotations

import importlib
import sys
import warnings

import numpy as np
import pytest
from models import SHARED, values

from fissile.errors import ModelError
from fissile.onnx.load import load

CORPUS = SHARED / "corpus"
NAMES = sorted(p.stem for p in CORPUS.glob("cases/*.py") if p.stem != "__init__")
# results whose shape only run time knows
REFUSED = {"loop_stops_on_condition", "nms_default_is_none"}


def _built(name: str):
    if str(CORPUS) not in sys.path:
        sys.path.insert(0, str(CORPUS))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return importlib.import_module(f"cases.{name}").build()


def _tolerance(name: str) -> tuple[float, float]:
    words = (CORPUS / "cases" / f"{name}.py").read_text().splitlines()[2].split()
    numbers = [float(w.partition("=")[2]) for w in words if "=" in w]
    return (numbers[0], numbers[1]) if numbers else (0.0, 0.0)


def _graph(model, feeds):
    """Integer inputs are fixed where shapes depend on them."""
    try:
        return load(model, {n: a.shape for n, a in feeds.items()})
    except ModelError:
        fixed = {n: a for n, a in feeds.items() if a.dtype.kind in "iub"}
        return load(model, {n: a.shape for n, a in feeds.items() if n not in fixed}, fixed)


@pytest.mark.parametrize("name", NAMES)
def test_expected_values(name):
    model, feeds, wanted = _built(name)
    if name in REFUSED:
        with pytest.raises(ModelError):
            _graph(model, feeds)
        return
    rtol, atol = _tolerance(name)
    for got, want in zip(values(_graph(model, feeds), feeds), wanted, strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol, atol)
