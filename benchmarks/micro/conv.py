"""Fraction of FMA peak of conv.h (channels-last, direct) on the 3x3 layers of real networks.

    python benchmarks/micro/conv.py [--machine avx2] [--cold] [--sweep]

The input is padded already, as a generated kernel finds it; flops are those of a direct
convolution.
"""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import argparse

from harness import TIMER, aligned, compile_cpp, measure

SHAPES = {  # output rows, output columns, C, output channels, kernel, stride
    "ResNet-50 56x56 64": (56, 56, 64, 64, 3, 1),
    "ResNet-50 28x28 128": (28, 28, 128, 128, 3, 1),
    "ResNet-50 14x14 256": (14, 14, 256, 256, 3, 1),
    "ResNet-50 7x7 512": (7, 7, 512, 512, 3, 1),
    "ResNet-50 28x28 128 s2": (28, 28, 128, 128, 3, 2),
    "ResNet-50 112x112 3->64 7x7 s2": (112, 112, 3, 64, 7, 2),
    "YOLOv4 52x52 128": (52, 52, 128, 128, 3, 1),
    "MobileNetV2 112x112 3->32 s2": (112, 112, 3, 32, 3, 2),
}

KERNEL = r"""
extern "C" void {name}(const float* x, const float* b, float* y) {{
  constexpr int64_t H = {H}, W = {W}, C = {C}, N = {N}, KH = {KH}, S = {S}, WP = (W - 1) * S + KH, V = {NV} * VL;
  for (int64_t n = 0; n < N; n += V)
    for_rows<{PY}, H>([&](auto py, int64_t h) {{
      for_rows<{PX}, W>([&](auto px, int64_t w) {{
        vf c[py.value * px.value][{NV}];
        zero(c);
        conv_tile<px.value, {NV}, py.value>(c, x + (h * S * WP + w * S) * C, S * C, S * WP * C, WP * C, KH, KH * C, b + n * KH * KH * C);
#pragma GCC unroll 32
        for (int i = 0; i < py.value; i++)
#pragma GCC unroll 32
          for (int j = 0; j < px.value; j++)
#pragma GCC unroll 8
            for (int v = 0; v < {NV}; v++) store(y + ((h + i) * W + w + j) * N + n + v * VL, relu(c[i * px.value + j][v]));
      }});
    }});
}}
"""

TILES = {  # PX, NV, PY
    "native": [
        (14, 2, 1),
        (7, 4, 1),
        (7, 2, 2),
        (13, 2, 1),
        (12, 2, 1),
        (10, 2, 1),
        (28, 1, 1),
        (9, 3, 1),
        (6, 4, 1),
        (14, 1, 2),
        (7, 1, 4),
    ],
    "avx2": [
        (6, 2, 1),
        (7, 1, 2),
        (3, 2, 2),
        (12, 1, 1),
        (7, 2, 1),
        (4, 3, 1),
        (5, 2, 1),
        (4, 2, 1),
    ],
}
TILES["narrow"] = TILES["native"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", choices=list(TILES), default="native")
    parser.add_argument("--cold", action="store_true", help="evict the weights before each call")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", default="", help="shapes whose name contains this")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    for title, (h, w, c, n, k, s) in SHAPES.items():
        if args.only not in title:
            continue
        vl = 16 if args.machine == "native" else 8
        tiles = [t for t in TILES[args.machine] if n % (t[1] * vl) == 0 and t[0] <= w and t[2] <= h]
        tiles = tiles if args.sweep else tiles[:1]
        names = [f"k{px}x{nv}_{py}" for px, nv, py in tiles]
        source = (
            TIMER
            + '#include "conv.h"\nnamespace fissile {\n'
            + "".join(
                KERNEL.format(name=name, H=h, W=w, C=c, N=n, KH=k, S=s, PX=px, NV=nv, PY=py)
                for name, (px, nv, py) in zip(names, tiles, strict=True)
            )
            + "}\n"
        )
        lib = compile_cpp(source, args.machine)
        x, b, y = (
            aligned(((h - 1) * s + k) * ((w - 1) * s + k) * c),
            aligned(n * k * k * c),
            aligned(h * w * n),
        )
        result, peak = measure(
            lib,
            [(name, x, b, y, 2.0 * h * w * n * k * k * c) for name in names],
            args.cold,
            args.rounds,
        )
        ranked = sorted(result.items(), key=lambda item: item[1][0])[:6]
        print(
            f"{title:30s} peak {peak:5.0f}  "
            + "  ".join(f"{name[1:]}: {us:6.1f} us {frac:4.2f}" for name, (us, frac) in ranked),
            flush=True,
        )


if __name__ == "__main__":
    main()
