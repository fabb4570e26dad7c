"""Graphs as text, and back: an exact round trip.

    graph "main" (%0 "x") -> (%3 "y") {
      %0 = input() {id: 0, of: "f32[2,3]"} : f32[2,3]
      %1 = constant() {value: f32[] 0x0000003f} : f32[]
      %2 = mul(%0, %1) : f32[2,3] from "Mul_0"
    }

Parsing applies `intern`, so with the same placeholder ids the parsed values are the printed ones.
Strings are JSON, so any name survives. Floats print by `repr`, literals readably where that gives
back the same bits and as the hex of their bytes otherwise; literals of more than `INLINE` elements
print as `@digest` and come from the table that `constants` gives. Nothing recurses over the depth
of a graph.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Attr, Graph, Literal, Node, Value, intern, placeholder
from fissile.ir.types import BY_NAME, TensorType

INLINE = 16


def constants(graph: Graph) -> dict[str, np.ndarray]:
    """The literals that `text` does not print, by digest; those of inner graphs too."""
    found: dict[str, np.ndarray] = {}
    graphs = [graph]
    while graphs:
        for node in _all_nodes(graphs.pop()):
            for attr in _flat(node.attrs.values()):
                if isinstance(attr, Graph):
                    graphs.append(attr)
                elif isinstance(attr, Literal) and attr.array.size > INLINE:
                    found[attr.digest] = attr.array
    return found


def _flat(attrs: Any) -> Iterator[Attr]:
    for attr in attrs:
        if isinstance(attr, tuple):
            yield from _flat(attr)
        else:
            yield attr


def _all_nodes(graph: Graph) -> tuple[Node, ...]:
    """Inputs first, unused ones included, then all that the outputs need."""
    return tuple(dict.fromkeys([*(v.node for v in graph.inputs), *graph.nodes]))


# ---------------------------------------------------------------- printing


def text(graph: Graph) -> str:
    """The graph in the form above, with a line break at the end."""
    return "\n".join(_graph_lines(graph)) + "\n"


def _graph_lines(graph: Graph) -> Iterator[str]:
    names: dict[Value, str] = {}
    nodes = _all_nodes(graph)
    for node in nodes:
        first = len(names)
        names.update((v, f"%{first + i}") for i, v in enumerate(node.outputs))
    ends = [
        ", ".join(f"{names[v]} {json.dumps(n)}" for v, n in zip(values, labels, strict=True))
        for values, labels in (
            (graph.inputs, graph.input_names), (graph.outputs, graph.output_names),
        )
    ]  # fmt: skip
    yield f"graph {json.dumps(graph.name)} ({ends[0]}) -> ({ends[1]}) {{"
    for node in nodes:
        yield "  " + _node(node, names, graph.provenance.get(node, ()))
    yield "}"


def _node(node: Node, names: Mapping[Value, str], origin: Sequence[str]) -> str:
    left = ", ".join(names[v] for v in node.outputs)
    attrs = ", ".join(f"{_key(k)}: {_attr(a)}" for k, a in node.attrs.items())
    return (
        f"{left} = {node.prim}({', '.join(names[v] for v in node.inputs)})"
        + (f" {{{attrs}}}" if attrs else "")
        + f" : {', '.join(map(repr, node.types))}"
        + (f" from {', '.join(map(json.dumps, origin))}" if origin else "")
    )


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) else json.dumps(name)


def _attr(a: Attr) -> str:
    if a is None or isinstance(a, bool):
        return {None: "none", True: "true", False: "false"}[a]
    if isinstance(a, int):
        return str(a)
    if isinstance(a, float):
        return _float(a)
    if isinstance(a, str):
        return json.dumps(a)
    if isinstance(a, Literal):
        return _literal(a)
    if isinstance(a, Graph):
        return "\n  ".join(_graph_lines(a))
    return f"({', '.join(map(_attr, a))})"


def _float(x: float) -> str:
    """repr with a point or a letter, so that it is no integer; NaN by its bits."""
    return f"nan 0x{struct.pack('<d', x).hex()}" if math.isnan(x) else repr(x)


def _literal(a: Literal) -> str:
    if a.array.size > INLINE:
        return f"{a.type} @{a.digest}"
    flat = a.array.reshape(-1)
    if a.type.dtype.name in ("f32", "f64") or a.type.dtype.is_integer:
        items = [repr(v) for v in flat.tolist()]
        if np.array([_number(s) for s in items], flat.dtype).tobytes() == flat.tobytes():
            return f"{a.type} [{', '.join(items)}]"
    return f"{a.type} 0x{flat.tobytes().hex()}"


def _number(item: str) -> int | float:
    return int(item) if re.fullmatch(r"-?\d+", item) else float(item)


# ---------------------------------------------------------------- parsing

_TOKENS = re.compile(
    r"""\s*(?: (?P<string>"(?:[^"\\]|\\.)*") | (?P<value>%\d+) | (?P<digest>@[0-9a-f]+)
      | (?P<type>[a-z][a-z0-9]*\[[\d,]*\]) | (?P<hex>0x[0-9a-f]*)
      | (?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:e[+-]?\d+)?))
      | (?P<word>[A-Za-z_]\w*) | (?P<mark>->|[(){}\[\]:,=]) )""",
    re.VERBOSE | re.ASCII,
)


def parse(
    source: str, constants: Mapping[str, np.ndarray] | None = None, fresh: bool = False
) -> Graph:
    """The graph of a text. `constants` holds the arrays printed by digest; `fresh` makes new
    inputs.

    Raises ModelError with the place of the fault.
    """
    parser = _Parser(source, constants or {}, fresh)
    try:
        graph = parser.graph()
        parser.end()
        return graph
    except ModelError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
        raise parser.fault(f"{type(error).__name__} {error}") from None


class _Parser:
    def __init__(self, source: str, constants: Mapping[str, np.ndarray], fresh: bool):
        self.source, self.constants, self.fresh = source, constants, fresh
        self.at = self.mark = 0  # behind the token; where the statement begins
        self.kind, self.token = "", ""
        self.step()

    def fault(self, what: str) -> ModelError:
        line = self.source.count("\n", 0, self.mark) + 1
        return ModelError(f"graph text, line {line}: {what}")

    def step(self) -> str:
        """Move to the next token; the one left behind."""
        left = self.token
        match = _TOKENS.match(self.source, self.at)
        if match:
            self.at, self.kind = match.end(), match.lastgroup or ""
            self.token = match[self.kind]
        elif self.source[self.at :].strip():
            raise self.fault(f"unexpected {self.source[self.at : self.at + 20]!r}")
        else:
            self.kind, self.token = "end", ""
        return left

    def take(self, token: str) -> None:
        if self.token != token or self.kind == "string":
            raise self.fault(f"expected {token!r}, found {self.token!r}")
        self.step()

    def kinded(self, kind: str) -> str:
        if self.kind != kind:
            raise self.fault(f"expected a {kind}, found {self.token!r}")
        return self.step()

    def has(self, token: str) -> bool:
        """Pass a token if it is next."""
        if self.token != token or self.kind == "string":
            return False
        self.step()
        return True

    def end(self) -> None:
        if self.kind != "end":
            raise self.fault(f"unexpected {self.token!r} after the graph")

    def graph(self) -> Graph:
        self.take("graph")
        name = self.string()
        inputs = self.ends()
        self.take("->")
        outputs = self.ends()
        self.take("{")
        values: dict[str, Value] = {}
        provenance: dict[Node, tuple[str, ...]] = {}
        while not self.has("}"):
            node, origin = self.node(values)
            if origin:
                provenance[node] = origin
        self.mark = self.at
        for label, _ in (*inputs, *outputs):
            if label not in values:
                raise self.fault(f"{label} is not defined")
        return Graph(
            tuple(values[v] for v, _ in inputs), tuple(values[v] for v, _ in outputs),
            tuple(n for _, n in inputs), tuple(n for _, n in outputs), provenance, name,
        )  # fmt: skip

    def string(self) -> str:
        return json.loads(self.kinded("string"))

    def ends(self) -> list[tuple[str, str]]:
        self.take("(")
        found: list[tuple[str, str]] = []
        while not self.has(")"):
            found.append((self.kinded("value"), self.string()))
            if self.token != ")":
                self.take(",")
        return found

    def listed(self, kind: str) -> list[str]:
        found = [self.kinded(kind)]
        while self.has(","):
            found.append(self.kinded(kind))
        return found

    def node(self, values: dict[str, Value]) -> tuple[Node, tuple[str, ...]]:
        self.mark = self.at
        labels = self.listed("value")
        self.take("=")
        prim = self.kinded("word")
        self.take("(")
        operands = [] if self.token == ")" else self.listed("value")
        self.take(")")
        attrs = self.attrs() if self.has("{") else {}
        types: list[TensorType] = []
        if self.has(":") and self.kind == "type":
            types = [self.type(t) for t in self.listed("type")]
        origin = tuple(json.loads(s) for s in self.listed("string")) if self.has("from") else ()
        for label in operands:
            if label not in values:
                raise self.fault(f"{label} is used before it is defined")
        if len(labels) != len(types):
            raise self.fault(f"{len(labels)} results, {len(types)} types")
        if self.fresh and prim == "input":
            node = placeholder(types[0]).node
        else:
            node = intern(prim, [values[v] for v in operands], attrs, types)
        values.update(zip(labels, node.outputs, strict=True))
        return node, origin

    def attrs(self) -> dict[str, Attr]:
        found: dict[str, Attr] = {}
        while not self.has("}"):
            key = self.string() if self.kind == "string" else self.step()
            self.take(":")
            found[key] = self.attr()
            if self.token != "}":
                self.take(",")
        return found

    def attr(self) -> Attr:
        if self.kind == "string":
            return self.string()
        if self.kind == "number":
            return self.number()
        if self.kind == "type":
            return self.literal()
        if self.token == "graph":
            return self.graph()
        if self.has("("):
            items: list[Attr] = []
            while not self.has(")"):
                items.append(self.attr())
                if self.token != ")":
                    self.take(",")
            return tuple(items)
        words: dict[str, Attr] = {"none": None, "true": True, "false": False}
        if self.token not in words:
            raise self.fault(f"unexpected {self.token!r} in an attribute")
        return words[self.step()]

    def number(self) -> int | float:
        item = self.kinded("number")
        if item == "nan" and self.kind == "hex":
            return struct.unpack("<d", bytes.fromhex(self.step()[2:]))[0]
        return _number(item)

    def type(self, item: str) -> TensorType:
        name, _, extents = item[:-1].partition("[")
        return TensorType(tuple(int(s) for s in extents.split(",") if s), BY_NAME[name])

    def literal(self) -> Literal:
        type = self.type(self.kinded("type"))
        dtype = type.dtype.numpy
        if self.kind == "digest":
            digest = self.step()[1:]
            if digest not in self.constants:
                raise self.fault(f"no constant {digest} in the table")
            literal = Literal(self.constants[digest])
            if literal.type != type or literal.digest != digest:
                raise self.fault(f"constant {digest} is {literal.type}, expected {type}")
            return literal
        if self.kind == "hex":
            data = np.frombuffer(bytes.fromhex(self.step()[2:]), dtype)
        else:
            self.take("[")
            items = [] if self.token == "]" else self.listed("number")
            self.take("]")
            data = np.array([_number(s) for s in items], dtype)
        return Literal(data.reshape(type.shape))
