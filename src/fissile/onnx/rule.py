"""The table of fission rules: what an ONNX operator means in primitives.

    @fission("Softmax", since=13)
    def softmax(x, *, axis=-1): ...                                            (design, section 4)

Positional parameters are the operator's inputs, None where an optional one is absent; keyword-only
parameters are its attributes. Where ONNX turned an attribute into an input (Clip's min, Squeeze's
axes) one rule serves both: an attribute fills the positional parameter of its name. `since` picks
the rule for the model's opset; `opset` and `outputs` (how many results are asked for) come when the
signature has them. A parameter annotated `Ints`, `Int`, `Float` or `Known` must be known at compile
time and arrives so.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fissile.errors import ModelError
from fissile.ir.graph import Value

Ints: TypeAlias = tuple[int, ...]
Int: TypeAlias = int
Float: TypeAlias = float
Known: TypeAlias = np.ndarray
Result: TypeAlias = Value | Sequence[Value]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Rule:
    op: str
    since: int
    apply: Callable[..., Result]
    signature: inspect.Signature


RULES: dict[tuple[str, str], list[Rule]] = {}


def fission(*ops: str, since: int = 1, domain: str = "") -> Callable[[Function], Function]:
    """Registers a function as the rule for these operators, from opset `since` on."""

    def register(function: Function) -> Function:
        for op in ops:
            rules = RULES.setdefault((domain, op), [])
            rules.append(Rule(op, since, function, inspect.signature(function)))
            rules.sort(key=lambda rule: rule.since)
        return function

    return register


def rule_for(domain: str, op: str, opset: int) -> Rule | None:
    """The newest rule that is not newer than the opset."""
    fitting = [rule for rule in RULES.get((domain, op), ()) if rule.since <= opset]
    return fitting[-1] if fitting else None


def call(
    rule: Rule,
    inputs: Sequence[Value | None],
    attributes: Mapping[str, Any],
    opset: int,
    outputs: int,
) -> tuple[Value, ...]:
    """The rule's results. Raises ModelError or ValueError where it does not apply."""
    left = dict(attributes)
    arguments, named = [], {}
    supplied = list(inputs)
    for name, parameter in rule.signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments += [_present(v, name) for v in supplied]
            supplied = []
        elif parameter.kind is parameter.KEYWORD_ONLY:
            if name in ("opset", "outputs"):
                named[name] = opset if name == "opset" else outputs
            elif name in left:
                named[name] = left.pop(name)
        else:
            arguments.append(_positional(parameter, supplied, left))
    if left:
        raise ModelError(f"its attribute {sorted(left)[0]} is not supported")
    if any(v is not None for v in supplied):
        raise ModelError("it has more inputs than are supported")
    result = rule.apply(*arguments, **named)
    return (result,) if isinstance(result, Value) else tuple(result)


def _present(value: Value | None, name: str) -> Value:
    if value is None:
        raise ModelError(f"one of its inputs {name} is missing")
    return value


def _positional(parameter: inspect.Parameter, supplied: list[Any], left: dict[str, Any]) -> Any:
    given = supplied.pop(0) if supplied else None
    if given is None and parameter.name in left:
        given = left.pop(parameter.name)
    if given is None:
        if parameter.default is parameter.empty:
            raise ModelError(f"its input {parameter.name} is missing")
        return parameter.default
    convert = _KNOWN.get(str(parameter.annotation).removesuffix(" | None"))
    return convert(given, parameter.name) if convert else given


def known(value: Any, name: str) -> np.ndarray:
    """The data of a constant or an attribute. Raises ModelError for what only run time knows."""
    if not isinstance(value, Value):
        return np.asarray(value)
    if not value.is_constant:
        raise ModelError(
            f"its input {name} is computed at run time; only values known at compile time are "
            "supported"
        )
    return value.array


def _ints(value: Any, name: str) -> Ints:
    return tuple(int(i) for i in known(value, name).ravel())


def _scalar(value: Any, name: str) -> Any:
    array = known(value, name)
    if array.size != 1:
        raise ModelError(f"its input {name} must hold one element, not {array.size}")
    return array.ravel()[0].item()


_KNOWN: dict[str, Callable[[Any, str], Any]] = {
    "Ints": _ints,
    "Int": lambda value, name: int(_scalar(value, name)),
    "Float": lambda value, name: float(_scalar(value, name)),
    "Known": known,
}
