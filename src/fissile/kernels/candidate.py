"""Candidates, and the kernels they lower to.

    A candidate is a kernel: it needs tokens, gives tokens, and costs time.      (design, section 1)

Everything that the selection can choose is a `Candidate`: a fused kernel, an adapter between
layouts (an empty region), an alias that only re-names memory (impl "alias", no code). A target's
`implementations` makes them from a region; its `lower` turns a chosen one into a `Kernel`, which is
C++ text.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal
from weakref import WeakKeyDictionary

from fissile.ir.graph import Value
from fissile.ir.layout import Layout, Token
from fissile.kernels.region import Region

EMPTY = Region((), ())


@dataclass(frozen=True)
class No:
    """A refusal with its reason."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


@dataclass(frozen=True, eq=False)
class Candidate:
    """`needs` follow region.tensors, `gives` follow region.outputs. `params` is hashable.

    saving: multiplications that define its linear primitives over those that it executes.
    extra_bytes: of constants, beyond their own size, that are stored for its kernel.
    opened_bytes: of constants that are made in memory for its kernel when the artifact is opened.
    error: the relative rms error that it is expected to add to that of the definition in f32.
    """

    region: Region
    impl: str
    params: tuple[tuple[str, Any], ...]
    needs: tuple[Token, ...]
    gives: tuple[Token, ...]
    saving: float = 1.0
    error: float = 0.0
    extra_bytes: int = 0
    opened_bytes: int = 0

    def elsewhere(
        self, region: Region, needs: tuple[Token, ...], gives: tuple[Token, ...]
    ) -> Candidate:
        """The same kernel on a region of equal signature, in equal layouts."""
        other = replace(self, region=region, needs=needs, gives=gives)
        other.__dict__["key"] = self.key  # what it is a digest of is equal
        return other

    @property
    def is_adapter(self) -> bool:
        return not self.region.nodes

    @property
    def is_alias(self) -> bool:
        """No code: the given token is the needed one's memory from `params["offset_bytes"]` on."""
        return self.impl == "alias"

    @property
    def computed_by(self) -> str:
        """The implementation whose kernel it is: its own, or what the parameter "by" names."""
        return self.param.get("by", self.impl)

    @property
    def param(self) -> dict[str, Any]:
        return dict(self.params)

    @cached_property
    def key(self) -> str:
        """Equal keys mean equal code: one kernel, one measurement."""
        types = ", ".join([_described(t) for t in (*self.needs, *self.gives)])
        text = f"{self.region.signature} {self.impl} {self.params} [{types}]"
        return hashlib.sha256(text.encode()).hexdigest()[:24]


_TOKEN_TEXT: WeakKeyDictionary[Value, dict[Layout, str]] = WeakKeyDictionary()


def _described(token: Token) -> str:
    """Type and layout; a token stands in many candidates."""
    known = _TOKEN_TEXT.setdefault(token.value, {})
    if (text := known.get(token.layout)) is None:
        text = known[token.layout] = f"({token.value.type}, {token.layout})"
    return text


@dataclass(frozen=True)
class Packing:
    """How a constant is laid out for a kernel: the name of a packer of the target and its
    arguments. `opening`: the plain constant is stored, and packed when the artifact is opened; the
    run time has the packer under the same name."""

    packer: str
    args: tuple[Any, ...] = ()
    opening: bool = False


@dataclass(frozen=True)
class Param:
    """One pointer argument of a kernel. `index` counts in candidate.needs, region.parameters or
    candidate.gives, by `role`; "work" is memory that all its tiles share and nobody else reads.
    `packing` is set for constants. `elements` is the size of what it points to. `ctype` is the
    element's C type, or the pointer's: `element` is the element's."""

    name: str
    ctype: str
    role: str  # need, constant, give, work
    index: int
    elements: int
    packing: Packing | None = None

    @property
    def element(self) -> str:
        return self.ctype.removeprefix("const ").rstrip("* ")


@dataclass(frozen=True)
class Kernel:
    """C++ text of one kernel: `source` defines

        static void NAME(<params...>, char* scratch, long begin, long end)

    which computes the tiles [begin, end) of `tiles`; any partition gives the same bits. If it
    `closes`, then [tiles, tiles + 1) is called once all tiles are done: what needs all of them.
    `scratch_bytes` is what one thread needs, 64-byte aligned. Pointers to const are inputs.
    `libraries` are names of what it calls besides the runtime; the target links them.
    """

    name: str
    source: str
    params: tuple[Param, ...]
    tiles: int
    scratch_bytes: int
    libraries: tuple[str, ...] = ()
    closes: bool = False


def parameter_value(candidate: Candidate, param: Param) -> Value:
    """The constant that a parameter of role "constant" points to."""
    return candidate.region.parameters[param.index]
