"""What keeps kernels cheap to compile: they include no header but <stddef.h> and <stdint.h>."""

from __future__ import annotations

import re

import pytest

KERNEL_HEADERS = [
    "types.h",
    "vec.h",
    "vmath.h",
    "contract.h",
    "conv.h",
    "depthwise.h",
    "pool.h",
    "transpose.h",
    "threads.h",
]


@pytest.mark.parametrize("name", KERNEL_HEADERS)
def test_no_standard_header(runtime_folder, name):
    includes = set(
        re.findall(r"#include\s+([<\"][^>\"]+[>\"])", (runtime_folder / name).read_text())
    )
    assert {i for i in includes if i.startswith("<")} <= {"<stddef.h>", "<stdint.h>"}


@pytest.mark.parametrize("name", KERNEL_HEADERS)
def test_header_stands_alone(compile_cpp, machine, name):
    compile_cpp("", machine, name)
