"""The text of `RESULTS.md`: one table for each part, of the rows that are there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median
from typing import Any

Row = Mapping[str, Any]
PEERS = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO"}
ARITHMETIC_BAR, MEMORY_BAR, WINOGRAD_BAR = 0.85, 0.8, 1.3
WORST = 6  # kernel shapes shown of each network: those that lose most time

HEAD = """# Results

Written by `python benchmarks/results.py`, from the rows below `benchmarks/results/`.

Times on a shared machine drift, so what counts is the ratio: every round calls each engine once, in
an order that rotates, and a ratio is the median over the rounds of the quotient of the two times of
that round, with its quartiles. Above 1, ours is faster. Peers run in f32 with the same number of
threads: ONNX Runtime with its defaults (its threads stop spinning when a run ends, so that they
do not disturb the next engine's turn), OpenVINO with one stream for latency, one request, inputs
and outputs shared. `best` is the ratio to the faster of the two. The sum of the kernels' costs is
compared with our latency in these rounds; a section of its own measures both side by side. Errors
are the largest over the verification inputs, relative to the output's scale, against float64; the
yardstick is the error of ONNX Runtime. Networks are compiled whole, for `--tune` {tune}. Weights
are random where the network is not a real one.
"""


def written(rows: Sequence[Row], names: Sequence[str]) -> str:
    """All of it; parts without rows are left out."""
    place = {n: i for i, n in enumerate(names)}
    rows = sorted(rows, key=lambda r: (r["case"]["threads"], place.get(r["case"]["name"], 999)))
    if not rows:
        return "# Results\n\nNothing has been measured yet: `python benchmarks/results.py`.\n"
    tunes = sorted({r["case"]["tune"] for r in rows})
    text = [HEAD.format(tune=" or ".join(f"{t:g}" for t in tunes)), _origins(rows)]
    for part, title, section in SECTIONS:
        mine = [r for r in rows if r["part"] == part]
        good = [r for r in mine if "fault" not in r]
        if mine:
            text.append(f"## {title}\n")
            text.append(section(good) if good else "")
            text += [f"{_label(r)} failed: {r['fault']}\n" for r in mine if "fault" in r]
    return "\n".join(text).rstrip() + "\n"


def _origins(rows: Sequence[Row]) -> str:
    """Which commits and machines the rows come from: one line each."""
    found: dict[str, list[Row]] = {}
    for r in rows:
        at = r["at"]
        versions = ", ".join(f"{k} {v}" for k, v in at["versions"].items())
        line = (
            f"sources {at['source']} (commit {at['commit']}), {at['processor']}, "
            f"{at['processors']} processors, {at['compiler']}, Python {at['python']}, {versions}"
        )
        found.setdefault(line, []).append(r)
    lines = []
    for line, mine in sorted(found.items(), key=lambda item: -len(item[1])):
        parts = ", ".join(sorted({r["part"] for r in mine}))
        dates = sorted({r["at"]["date"] for r in mine})
        lines.append(
            f"- {len(mine)} rows ({parts}), {' to '.join(dates[:1] + dates[1:][-1:])}: {line}"
        )
    return "\n".join(lines) + "\n"


# ---------------------------------------------------------------- sections


def _latency(rows: Sequence[Row]) -> str:
    text = []
    for threads in sorted({r["case"]["threads"] for r in rows}):
        mine = [r for r in rows if r["case"]["threads"] == threads]
        batches = {r["case"]["batch"] for r in mine}
        text.append(f"Threads: {threads}. Batch: {', '.join(map(str, sorted(batches)))}.\n")
        text.append(_grid(LATENCY, (_latency_cells(r) for r in mine)))
        text.append(_means(mine))
    return "\n".join(text)


LATENCY = ("network", "ours ms", *(f"{n} ms" for n in PEERS.values()),
           *(f"{n} / ours" for n in PEERS.values()), "best", "costs / ours",
           "error", "yardstick")  # fmt: skip


def _latency_cells(r: Row) -> list[str]:
    engines = r["row"]["engines"]
    mine = engines["fissile"]
    ms = [f"{engines[n]['median_us'] / 1e3:.2f}" if n in engines else "-" for n in PEERS]
    ratios = [_ratio(engines[n]) if n in engines else "-" for n in PEERS]
    share = r["row"]["selection"]["us"] / mine["median_us"]
    best = f"{_best(r):.2f}" if _best(r) else "-"
    errors = [f"{r['row'][k]:.1e}" for k in ("error", "yardstick")]
    return [r["case"]["name"], f"{mine['median_us'] / 1e3:.2f}", *ms, *ratios, best,
            f"{share:.2f}", *errors]  # fmt: skip


def _ratio(engine: Mapping[str, float]) -> str:
    return f"{engine['ratio']:.2f} ({engine['low']:.2f} to {engine['high']:.2f})"


def _best(r: Row) -> float | None:
    """The ratio to the fastest peer."""
    engines = r["row"]["engines"]
    found = [engines[n]["ratio"] for n in PEERS if n in engines]
    return min(found) if found else None


def _means(rows: Sequence[Row]) -> str:
    """Geometric means: of whole networks, and of all."""
    whole = [r for r in rows if not r["case"]["name"].startswith("case_")]
    parts = []
    for title, mine in (("networks", whole), ("with parts of networks", rows)):
        if not mine or (mine is rows and len(rows) == len(whole)):
            continue
        means = [f"{shown} {_geometric(_ratios(mine, n)):.2f}" for n, shown in PEERS.items()]
        best = _geometric([b for r in mine if (b := _best(r))])
        ahead = sum((_best(r) or 0) >= 1 for r in mine)
        parts.append(
            f"Geometric means over {len(mine)} {title}: {', '.join(means)}, best peer {best:.2f}; "
            f"ahead of both on {ahead}.\n"
        )
    return "\n".join(parts)


def _ratios(rows: Sequence[Row], engine: str) -> list[float]:
    found = [r["row"]["engines"] for r in rows]
    return [engines[engine]["ratio"] for engines in found if engine in engines]


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _compiled(rows: Sequence[Row]) -> str:
    columns = ("network", "threads", "primitives", "regions", "candidates", "solver s", "gap %",
               "kernels", "adapters", "measured", "compile s")  # fmt: skip

    def cells(r: Row) -> list[str]:
        s = r["row"]["selection"]
        return [r["case"]["name"], str(r["case"]["threads"]),
                *(str(s[k]) for k in ("primitives", "regions", "candidates")),
                f"{s['solver_seconds']:.1f}", f"{100 * s['gap']:.4f}",
                *(str(s[k]) for k in ("kernels", "adapters", "measured")),
                f"{sum(s['seconds'].values()):.0f}"]  # fmt: skip

    return _grid(columns, map(cells, rows))


def _memory(rows: Sequence[Row]) -> str:
    text = (
        "What loading the model and three runs add to a process that has imported everything, MB: "
        "the peak, and what stays resident. Of ours, `mapped` are pages of the weights file, which "
        "the system shares between processes and takes back when it needs them.\n\n"
    )
    columns = ("network", "ours peak", "of it mapped", "ours without mapped",
               *(f"{n} peak" for n in PEERS.values()), "ours resident",
               *(f"{n} resident" for n in PEERS.values()),
               "weights on disk", "model on disk")  # fmt: skip

    def cells(r: Row) -> list[str]:
        engines, row = r["row"]["engines"], r["row"]
        mine = engines["fissile"]
        kb = [mine["peak"], mine["mapped"], mine["peak"] - mine["mapped"]]
        kb += [engines[n]["peak"] if n in engines else None for n in PEERS]
        kb += [mine["resident"]]
        kb += [engines[n]["resident"] if n in engines else None for n in PEERS]
        kb += [row["weights_bytes"] / 1024, row["model_bytes"] / 1024]
        return [r["case"]["name"], *("-" if v is None else f"{v / 1024:.1f}" for v in kb)]

    return text + _grid(columns, map(cells, rows))


def _neighbours(rows: Sequence[Row]) -> str:
    count = rows[0]["row"]["spinners"]
    text = (
        f"Mean latency beside {count} processes that never stop, over that alone, one engine at a "
        "time: the mean of pairs of phases, with the least and the most; and the ratios of the "
        "engines to each other beside them.\n\n"
    )
    columns = ("network", "threads", "ours slower", *(f"{n} slower" for n in PEERS.values()),
               *(f"{n} / ours" for n in PEERS.values()))  # fmt: skip

    def cells(r: Row) -> list[str]:
        slower, spread, ratio = (r["row"][k] for k in ("slower", "spread", "ratio"))
        times = [f"{slower[n]:.2f} ({spread[n][0]:.2f} to {spread[n][1]:.2f})"
                 if n in slower else "-" for n in ("fissile", *PEERS)]  # fmt: skip
        ratios = [f"{ratio[n]:.2f}" if n in ratio else "-" for n in PEERS]
        return [r["case"]["name"], str(r["case"]["threads"]), *times, *ratios]

    return text + _grid(columns, map(cells, rows))


def _tuning(rows: Sequence[Row]) -> str:
    text = (
        "Seconds of whole compilations: without a measurement, fully tuned from an empty store, "
        "and again from the full one. The plans' latencies, interleaved, and sums of costs over "
        "those of the fully tuned; `half` knows the first half of the measurements.\n\n"
    )
    columns = ("network", "untuned s", "full s", "warm s", "measured", "untuned / full",
               "half / full", "half / full, sums of costs")  # fmt: skip
    lines = [_tuned(r["case"]["name"], r["row"]) for r in rows]
    return text + _grid(columns, lines)


def _tuned(name: str, row: Row) -> list[str]:
    seconds, us, engines = row["seconds"], row["us"], row["engines"]
    return [
        name, *(f"{seconds[n]:.0f}" for n in ("untuned", "full", "warm")),
        str(row["measured"]["full"]), *(_ratio(engines[n]) for n in ("untuned", "half")),
        f"{us['half'] / us['full']:.3f}",
    ]  # fmt: skip


def _untuned(rows: Sequence[Row]) -> str:
    text = "`--tune 0` from an empty store: the cost model alone, against the tuned plan.\n\n"
    columns = ("network", "untuned / tuned (quartiles)", "seconds to compile")
    lines = [
        [r["case"]["name"], _ratio(r["row"]["engines"]["untuned"]), f"{r['row']['seconds']:.0f}"]
        for r in rows
    ]
    mean = _geometric(_ratios(rows, "untuned"))
    return text + _grid(columns, lines) + f"\nGeometric mean: {mean:.2f}.\n"


def _ablation(rows: Sequence[Row]) -> str:
    text = (
        "Latency without one part of the method over latency with all of it (quartiles); a part "
        "that no network here uses shows 1.00. `program`: regions fused greedily, the program "
        "chooses only layouts and implementations. `recomputation`: every primitive executed once. "
        "`channels-first`, `channels-last`: that layout is gone. Other names are "
        "implementations; `measured` are convolutions that also take the moments of their result, "
        "and without `winograd` there are none of them either.\n\n"
    )
    titles = list(dict.fromkeys(t for r in rows for t in r["row"]["us"] if t != "whole"))

    def cells(r: Row) -> list[str]:
        engines, faults = r["row"]["engines"], r["row"]["faults"]
        return [r["case"]["name"],
                *(_ratio(engines[t]) if t in engines else "refused" if t in faults else "-"
                  for t in titles)]  # fmt: skip

    last = ["geometric mean", *(f"{_geometric(_ratios(rows, t)):.2f}" for t in titles)]
    refused = [
        f"{r['case']['name']} without {t}: {fault}\n"
        for r in rows for t, fault in r["row"]["faults"].items()
    ]  # fmt: skip
    grid = _grid(("network", *(f"without {t}" for t in titles)), [*map(cells, rows), last])
    return text + grid + "\n" + "\n".join(refused)


def _kernels(rows: Sequence[Row]) -> str:
    text = (
        "Kernel shapes against the limit that the same process measured: the peak of fused "
        "multiply-adds, or a copy of as many bytes. Weights cold. Of every network the share of "
        f"its work at {ARITHMETIC_BAR:.0%} of the peak or better ({MEMORY_BAR:.0%} of a copy), and "
        f"the {WORST} shapes that lose most time.\n\n"
    )
    shares, worst = [], []
    for r in rows:
        found = r["row"]["rows"]
        shares.append([r["case"]["name"], str(len(found)),
                       *(_above(found, k, bar) for k, bar in
                         (("arithmetic", ARITHMETIC_BAR), ("memory", MEMORY_BAR)))])  # fmt: skip
        for k in sorted(found, key=lambda k: k["count"] * k["us"] * (k["share"] - 1))[:WORST]:
            worst.append([r["case"]["name"], k["title"], k["how"], k["limit"], str(k["count"]),
                          f"{k['us']:.1f}", f"{k['gflops']:.1f}", f"{k['share']:.2f}"])  # fmt: skip
    columns = (
        "network",
        "shape",
        "kernel",
        "limit",
        "count",
        "us",
        "GFLOP/s",
        "share of the limit",
    )
    first = _grid(("network", "shapes", "arithmetic", "memory"), shares)
    return text + first + "\n" + _grid(columns, worst)


def _above(found: Sequence[Mapping[str, Any]], limit: str, bar: float) -> str:
    mine = [k for k in found if k["limit"] == limit]
    whole = sum(k["work"] for k in mine)
    return f"{sum(k['work'] for k in mine if k['share'] >= bar) / whole:.0%}" if whole else "-"


def _costs(rows: Sequence[Row]) -> str:
    text = (
        "A round measures the program alone, one call after another, then each of its kernels as "
        "tuning does, then the program again; share: the sum of the kernels over the mean of the "
        "two, the median of the rounds with the least and the most.\n\n"
    )
    columns = ("network", "threads", "kernels", "program us", "kernels us", "share")
    lines = []
    for r in rows:
        found, row = r["row"]["rounds"], r["row"]
        program = median(k for f in found for k in (f["before_us"], f["after_us"]))
        lines.append([
            r["case"]["name"], str(r["case"]["threads"]), str(row["kernels"]), f"{program:.0f}",
            f"{median(f['costs_us'] for f in found):.0f}",
            f"{row['share']:.2f} ({row['low']:.2f} to {row['high']:.2f})",
        ])  # fmt: skip
    return text + _grid(columns, lines)


def _savings(rows: Sequence[Row]) -> str:
    text = (
        "Every kernel of the plans that executes fewer multiplications than its definition "
        "(`saving`: so many times fewer), against the fastest direct kernel of the same region in "
        "the same layouts, visited in turn by one process; weights cold. First by algorithm, "
        f"each kernel as often as it stands in the network; Winograd's bar is {WINOGRAD_BAR}.\n\n"
    )
    shares, lines = list[list[str]](), list[list[str]]()
    for r in rows:
        name, found = r["case"]["name"], r["row"]["rows"]
        for algorithm in dict.fromkeys(k["algorithm"] for k in found):
            mine = [k for k in found if k["algorithm"] == algorithm]
            shares.append([name, algorithm, *_gains(mine, algorithm == "winograd")])
        for k in sorted(found, key=lambda k: k["direct_us"] / k["us"]):
            lines.append([name, k["title"], k["region"], k["how"], k["direct"], str(k["count"]),
                          f"{k['saving']:.2f}", f"{k['us']:.1f}", *_direct(k)])  # fmt: skip
    first = ("network", "algorithm", "kernels", "geometric mean", "least", "below the bar")
    columns = ("network", "shape", "region", "kernel", "direct", "count", "saving", "us",
               "direct us", "direct GFLOP/s", "direct / chosen")  # fmt: skip
    return text + _grid(first, shares) + "\n" + _grid(columns, lines)


def _direct(k: Mapping[str, Any]) -> list[str]:
    if not (us := k["direct_us"]):
        return ["-"] * 3
    return [f"{us:.1f}", f"{k['flops'] / us * 1e-3:.1f}", f"{us / k['us']:.2f}"]


def _gains(found: Sequence[Mapping[str, Any]], has_bar: bool) -> list[str]:
    """How many kernels; mean and least ratio of those with a direct rival; how many are below."""
    ratios = [
        k["direct_us"] / k["us"] for k in found if k["direct_us"] for _ in range(k["count"])
    ]  # fmt: skip
    below = str(sum(r < WINOGRAD_BAR for r in ratios)) if has_bar else "-"
    least = f"{min(ratios):.2f}" if ratios else "-"
    count = str(sum(k["count"] for k in found))
    return [count, f"{_geometric(ratios):.2f}", least, below]


def _grid(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows]) + "\n"


def _label(r: Row) -> str:
    c = r["case"]
    return f"{c['name']}, {c['threads']} threads, batch {c['batch']}, accuracy {c['accuracy']}:"


Section = Callable[[Sequence[Row]], str]


def _exported(rows: Sequence[Row]) -> str:
    text = (
        "The model that `fissile fission --optimize` writes, against the model as it was, in "
        "unmodified runtimes. Above 1, the rewritten one is faster. `apart`: largest difference "
        "of their outputs, relative to the output's scale.\n\n"
    )
    columns = ("network", "threads", "primitives", "rewritten",
               *(f"{what}{n}" for n in PEERS.values() for what in ("", "apart in ")))  # fmt: skip

    def cells(r: Row) -> list[str]:
        found = [r["row"]["engines"][n] for n in PEERS]
        each = [(_ratio(e["model"]), f"{e['apart']:.1e}") for e in found]
        before, after = r["row"]["primitives"]
        threads = str(r["case"]["threads"])
        return [r["case"]["name"], threads, str(before), str(after), *(c for e in each for c in e)]

    return text + _grid(columns, map(cells, rows))


def _joint(rows: Sequence[Row]) -> str:
    text = (
        "What the program's best plan costs, in ms by what is known of kernels: with the graph as "
        "it was given; rewritten to the fewest operations first; and with all spellings at once. "
        "Gaps are proven.\n\n"
    )
    columns = ("network", "given", "sequential", "joint", "sequential / joint", "rewriting s",
               "program s", "gap %")  # fmt: skip

    def cells(r: Row) -> list[str]:
        given, first, both = (r["row"][k] for k in ("given", "sequential", "joint"))
        ms = [f"{s['us'] / 1e3:.2f}" for s in (given, first, both)]
        return [r["case"]["name"], *ms, f"{first['us'] / both['us']:.3f}",
                f"{both['rewrite_s']:.1f}", f"{both['solver_s']:.1f}",
                f"{100 * both['gap']:.3f}"]  # fmt: skip

    return text + _grid(columns, map(cells, rows))


SECTIONS: tuple[tuple[str, str, Section], ...] = (
    ("latency", "Latency, batch 1", _latency),
    ("batch", "Latency, batch 8", _latency),
    ("fast", "Latency with `--accuracy fast`, batch 1", _latency),
    ("exported", "Rewritten models in other runtimes", _exported),
    ("joint", "Rewriting and fusion decided jointly, 1 thread", _joint),
    ("ablation", "What each part of the method is worth, 1 thread", _ablation),
    ("untuned", "Without tuning, 1 thread", _untuned),
    ("tuning", "Tuning, 1 thread", _tuning),
    ("memory", "Memory, 1 thread", _memory),
    ("neighbours", "Busy neighbours", _neighbours),
    ("costs", "Sum of the chosen kernels' costs against the program", _costs),
    ("latency", "What was compiled", _compiled),
    ("kernels", "Kernels against the limits of the core, 1 thread", _kernels),
    (
        "savings",
        "Chosen algorithms that save multiplications against the direct kernel, 1 thread",
        _savings,
    ),
)
