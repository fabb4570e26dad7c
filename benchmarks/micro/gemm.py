"""Fraction of FMA peak of contract.h on the 1x1 convolutions and matrix products of real networks.

    python benchmarks/micro/gemm.py [--machine avx2] [--cold] [--packed] [--sweep]

A [M][K] row-major, B packed in panels, C [M][N] row-major with relu as epilogue. `--sweep` tries
tile shapes and loop orders; without it the recommended ones run.
"""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import argparse

from harness import TIMER, aligned, compile_cpp, measure

SHAPES = {  # M, K, N
    "ResNet-50 56x56 64->256": (3136, 64, 256),
    "ResNet-50 56x56 256->64": (3136, 256, 64),
    "ResNet-50 28x28 512->128": (784, 512, 128),
    "ResNet-50 14x14 1024->256": (196, 1024, 256),
    "ResNet-50 14x14 256->1024": (196, 256, 1024),
    "ResNet-50 7x7 2048->512": (49, 2048, 512),
    "ResNet-50 7x7 512->2048": (49, 512, 2048),
    "MobileNetV2 112x112 32->16": (12544, 32, 16),
    "MobileNetV2 56x56 24->144": (3136, 24, 144),
    "MobileNetV2 14x14 96->576": (196, 96, 576),
    "MobileNetV2 14x14 576->96": (196, 576, 96),
    "MobileNetV2 7x7 320->1280": (49, 320, 1280),
    "MiniLM 128 384->1536": (128, 384, 1536),
    "MiniLM 128 1536->384": (128, 1536, 384),
}

# for block of MC rows { for panel of columns { for tile of rows in the block } }
KERNEL = r"""
extern "C" void {name}(const float* a, const float* b, float* y) {{
  constexpr int64_t M = {M}, K = {K}, N = {N}, W = {NV} * VL, MC = {MC};
  for (int64_t m0 = 0; m0 < M; m0 += MC)
    for (int64_t n = 0; n < N; n += W) {{
      auto rows = [&](auto mr, int64_t m) {{
        vf c[mr.value][{NV}];
        zero(c);
        contract(c, K, a + (m0 + m) * K, {steps}, b + n * K);
#pragma GCC unroll 32
        for (int i = 0; i < mr.value; i++)
#pragma GCC unroll 8
          for (int v = 0; v < {NV}; v++) {{
            float* p = y + (m0 + m + i) * N + n + v * VL;
            if (N % W == 0) store(p, relu(c[i][v]));
            else if (int64_t left = N - n - v * VL; left > 0) storen(p, relu(c[i][v]), left < VL ? left : VL);
          }}
      }};
      if (M % MC == 0 || m0 + MC <= M) for_rows<{MR}, MC>(rows);
      else for_rows<{MR}, M % MC>(rows);
    }}
}}
"""


def kernel(name: str, shape: tuple[int, int, int], mr: int, nv: int, mc: int, packed: bool) -> str:
    m, k, n = shape
    steps = "1, mr.value" if packed else "K, 1"
    return KERNEL.format(name=name, M=m, K=k, N=n, MR=mr, NV=nv, MC=min(mc or m, m), steps=steps)


def recommended(machine: str, k: int, n: int) -> tuple[int, int]:
    """(MR, NV) by the rules of runtime/README.md"""
    if machine == "avx2":
        return 6, 2
    lanes = 16 if machine == "native" else 8
    if n <= lanes:
        return 28, 1
    if 4 * k % 4096 == 0:  # rows of A then share one set of L1, which has 8 ways: at most 7 rows
        return 7, 4
    return (9, 3) if n % (2 * lanes) and n % (3 * lanes) == 0 else (14, 2)


SWEEP = {
    "avx2": [(6, 2), (4, 3), (5, 2), (3, 4), (12, 1), (7, 2)],
    "native": [(14, 2), (12, 2), (10, 2), (9, 3), (8, 3), (7, 4), (6, 4), (28, 1)],
}


def choices(machine: str, sweep: bool, m: int, k: int, n: int) -> list[tuple[int, int, int]]:
    """(MR, NV, rows of a block; 0 is all rows)"""
    if not sweep:
        return [(*recommended(machine, k, n), 0)]
    found = []
    for mr, nv in SWEEP.get(machine, SWEEP["native"]):
        for block_bytes in (0, 24_000, 400_000):
            rows = block_bytes and max(1, block_bytes // (4 * k) // mr) * mr
            if rows < m and (mr, nv, rows) not in found:
                found.append((mr, nv, rows))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", choices=["native", "narrow", "avx2"], default="native")
    parser.add_argument("--cold", action="store_true", help="evict the weights before each call")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--packed", action="store_true", help="A is packed [M / MR][K][MR]")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    for title, (m, k, n) in SHAPES.items():
        if args.only not in title:
            continue
        todo = choices(args.machine, args.sweep, m, k, n)
        names = [f"k{mr}x{nv}_{mc}" for mr, nv, mc in todo]
        source = (
            TIMER
            + "namespace fissile {\n"
            + "".join(
                kernel(name, (m, k, n), *c, args.packed)
                for name, c in zip(names, todo, strict=True)
            )
            + "}\n"
        )
        lib = compile_cpp(source, args.machine)
        x, y, jobs = (
            aligned(m * k),
            aligned(m * n),
            [],
        )  # shared: in a network the input is warm too
        for name, (_, nv, _) in zip(names, todo, strict=True):
            width = nv * lib.lanes()
            jobs.append((name, x, aligned(-(-n // width) * width * k), y, 2.0 * m * n * k))
        result, peak = measure(lib, jobs, args.cold, args.rounds)
        ranked = sorted(result.items(), key=lambda item: item[1][0])[:6]
        print(
            f"{title:28s} peak {peak:5.0f}  "
            + "  ".join(f"{name[1:]}: {us:6.1f} us {frac:4.2f}" for name, (us, frac) in ranked),
            flush=True,
        )


if __name__ == "__main__":
    main()
