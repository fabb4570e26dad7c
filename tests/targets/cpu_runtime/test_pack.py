"""Constants that are packed when a model is opened: as the packers do it when one is built."""

from __future__ import annotations

import numpy as np
import pytest

from fissile.targets.cpu.packing import PACKERS

WINOGRAD = (
    'extern "C" void pack_w(float* to, const float* from, int64_t m, int64_t c, int64_t tile,'
    " int64_t width, int64_t vl) { winograd_panels(to, from, m, c, 3, 3, tile, width, vl); }\n"
)


@pytest.mark.parametrize("tile", [2, 3, 4])
@pytest.mark.parametrize(
    "m,c,width,vl", [(16, 3, 16, 16), (40, 5, 32, 16), (7, 2, 8, 4), (33, 1, 24, 8), (1, 9, 16, 16)]
)
def test_winograd_panels(compile_cpp, machine, tile, m, c, width, vl):
    """Both round once from double: equal but where a sum stands beside the middle."""
    k = np.random.default_rng(m).standard_normal((m, c, 3, 3)).astype(np.float32)
    want = PACKERS["winograd_panels"](k, tile, width, vl)
    got = np.zeros(want.size + 8, np.float32)
    got[want.size :] = 77
    compile_cpp(WINOGRAD, machine, "pack.h")("pack_w", got, k, m, c, tile, width, vl)
    np.testing.assert_allclose(got[: want.size], want, rtol=1.2e-7, atol=0)
    assert np.all(got[want.size :] == 77)
