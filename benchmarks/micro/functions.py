"""Nanoseconds and cycles for each element of the functions in vmath.h, data in L1.

    python benchmarks/micro/functions.py [--machine avx2]

Cycles are those of one vector, at the clock that the FMA peak implies for two 256-bit units.
"""

from __future__ import annotations

import argparse

from harness import TIMER, aligned, compile_cpp, measure

NAMES = ["relu", "exp", "log", "tanh", "sigmoid", "erf", "softplus", "mish", "gelu", "gelu_tanh"]
NAMES += ["silu", "sin", "sqrt", "round", "pow"]
N = 2048


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", choices=["native", "narrow", "avx2"], default="native")
    args = parser.parse_args()
    loops = "".join(
        f'extern "C" void {name}_(const float* x, const float*, float* y) {{\n'
        f"  for (int64_t i = 0; i < {N}; i += VL) store(y + i, {call});\n}}\n"
        for name in NAMES
        for call in [f"{name}(load<vf>(x + i){', 1.5f' * (name == 'pow')})"]
    )
    source = TIMER + f'#include "vmath.h"\nnamespace fissile {{\n{loops}}}\n'
    lib = compile_cpp(source, args.machine)
    x, y = abs(aligned(N)), aligned(N)
    jobs = [(f"{name}_", x, x, y, 1.0) for name in NAMES]
    result, peak = measure(lib, jobs)
    for name, (us, _) in result.items():
        ns = us * 1e3 / N
        print(f"{name[:-1]:10s} {ns:6.3f} ns  {ns * lib.lanes() * peak / 32:6.1f} cycles a vector")


if __name__ == "__main__":
    main()
