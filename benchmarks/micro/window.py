"""Channels-first depthwise convolution and transpose: fraction of FMA peak, and bytes against a copy of
the same bytes.

    python benchmarks/micro/window.py [--machine avx2] [--sweep]

Inputs are padded already. "copy" is the time to copy input bytes + output bytes over two by memcpy
in the same run.
"""

# ruff: noqa: E501  (C++ in strings)
from __future__ import annotations

import argparse

from harness import TIMER, aligned, compile_cpp, measure

DEPTHWISE = {  # output side, channels, kernel, stride
    "MobileNetV2 112x112 96 s2": (56, 96, 3, 2),
    "MobileNetV2 112x112 32": (112, 32, 3, 1),
    "MobileNetV2 56x56 144": (56, 144, 3, 1),
    "MobileNetV2 14x14 576": (14, 576, 3, 1),
    "MobileNetV2 7x7 960": (7, 960, 3, 1),
    "EfficientNet 14x14 480 5x5": (14, 480, 5, 1),
}

FIRST = r"""
extern "C" void {name}(const float* x, const float* w, float* y) {{
  constexpr int64_t H = {H}, C = {C}, K = {K}, S = {S}, V = {NV} * VL, WP = (H + V - 1) / V * V * S + K + 16;
  for (int64_t n = 0; n < C; n++)
    for_rows<{PY}, H>([&](auto py, int64_t h) {{
      for (int64_t j = 0; j < H; j += V) {{
        vf c[py.value][{NV}];
        zero(c);
        depthwise_first<K, K, S, {NV}, py.value>(c, x + n * ((H - 1) * S + K) * WP + h * S * WP + j * S, S * WP, WP, 1, w + n * K * K);
#pragma GCC unroll 32
        for (int i = 0; i < py.value; i++)
#pragma GCC unroll 8
          for (int v = 0; v < {NV}; v++) {{
            int64_t left = H - j - v * VL;
            float* p = y + (n * H + h + i) * H + j + v * VL;
            if (left >= VL) store(p, clip(c[i][v], 0.0f, 6.0f));
            else if (left > 0) storen(p, clip(c[i][v], 0.0f, 6.0f), left);
          }}
      }}
    }});
}}
"""

COPY = 'extern "C" void copy(const float* x, const float*, float* y) {{ __builtin_memcpy(y, x, {bytes}); }}\n'

TRANSPOSE = r""" extern "C" void transposed(const float* x, const float*, float* y) {{ transpose(y,
{R}, x, {C}, {R}, {C}); }}
"""


def depthwise(machine: str, sweep: bool, rounds: int, only: str) -> None:
    vl = 16 if machine == "native" else 8
    tiles = [(1, 4), (1, 2), (2, 2), (1, 7), (4, 1), (4, 2), (2, 4)]  # vectors, rows
    for title, (h, c, k, s) in DEPTHWISE.items():
        if only not in title:
            continue
        some = tiles if sweep else tiles[:1]
        names = [f"f{nv}_{py}" for nv, py in some]
        wp = (h - 1) * s + k
        touched = (wp * wp + h * h) * c * 4
        source = (
            TIMER
            + '#include "depthwise.h"\nnamespace fissile {\n'
            + COPY.format(bytes=touched // 2)
            + "".join(
                FIRST.format(name=name, H=h, C=c, K=k, S=s, NV=nv, PY=py)
                for name, (nv, py) in zip(names, some, strict=True)
            )
            + "}\n"
        )
        lib = compile_cpp(source, machine)
        row = -(-h // (4 * vl)) * 4 * vl * s + k + 16
        x, w, y = aligned(wp * row * c + 4096), aligned(k * k * c), aligned(wp * wp * c * 2)
        flops = 2.0 * h * h * c * k * k
        result, peak = measure(
            lib, [(name, x, w, y, flops) for name in ["copy", *names]], False, rounds
        )
        copy_us = result.pop("copy")[0]
        ranked = sorted(result.items(), key=lambda item: item[1][0])
        best = ranked[:5]
        print(
            f"{title:28s} peak {peak:4.0f} copy {copy_us:6.1f} us  "
            + "  ".join(f"{name}: {us:6.1f} us {frac:4.2f}" for name, (us, frac) in best),
            flush=True,
        )


def transposes(machine: str, rounds: int) -> None:
    for r, c in [
        (64, 3136),
        (3136, 64),
        (256, 196),
        (49, 2048),
        (512, 784),
        (1024, 1024),
        (2048, 49),
    ]:
        source = (
            TIMER
            + '#include "transpose.h"\nnamespace fissile {\n'
            + COPY.format(bytes=r * c * 4)
            + TRANSPOSE.format(R=r, C=c)
            + "}\n"
        )
        lib = compile_cpp(source, machine)
        x, y = aligned(r * c), aligned(r * c)
        result, _ = measure(
            lib, [("copy", x, y, y, 1.0), ("transposed", x, x, y, 1.0)], False, rounds
        )
        copy, ours = result["copy"][0], result["transposed"][0]
        print(
            f"transpose {r:5d} x {c:5d}: {ours:7.1f} us, copy {copy:7.1f} us, ratio {ours / copy:4.2f}, {8e-3 * r * c / ours:5.1f} GB/s",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--machine", choices=["native", "narrow", "avx2"], default="native")
    parser.add_argument("--sweep", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    args = parser.parse_args()
    depthwise(args.machine, args.sweep, args.rounds, args.only)
    if args.only in ("", "transpose"):
        transposes(args.machine, args.rounds)


if __name__ == "__main__":
    main()
