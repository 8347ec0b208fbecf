"""The Jinja2 environment of chat templates: code from a model file that may neither reach out nor run on for ever."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache, wraps
from typing import Any

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000  # of one rendering: a loop turn is one, a call and a list written out are CALL
CALL = 10
MAX_CHARS = 1 << 24  # of any text, or entries of any list; a million tokens are about 2^22 characters
MAX_NUMBER = 10_000  # as a width or a count, and bits of an integer

# Of no use in a prompt, and with one short argument they make a long text.
REMOVED_FILTERS = ("pprint", "urlize", "wordwrap", "xmlattr")
# Methods and filters whose result can outgrow their arguments: text, arguments -> about how many characters they add.
GROWTH: dict[str, Callable[..., int]] = {
    "replace": lambda text, old, new, count=-1: text.count(old) * len(new),
    "expandtabs": lambda text, tabsize=8: text.count("\t") * tabsize,
    "indent": lambda text, width=4, *_, **__: text.count("\n") * (width if isinstance(width, int) else len(width)),
    "join": lambda text, parts: len(text) * len(parts) + _weight(parts),
}

_steps: ContextVar[int] = ContextVar("steps")


@lru_cache(maxsize=16)
def compiled(source: str) -> tuple[jinja2.Template, frozenset[str]]:
    """The template, and the names that it reads from outside."""
    _steps.set(0)  # constants are computed here
    environment = Sandbox()
    names = meta.find_undeclared_variables(environment.parse(source))
    return environment.from_string(source), frozenset(names)


def render(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """The rendered text. Raises whatever the template raises, `SecurityError` for one that goes too far."""
    _steps.set(0)
    parts: list[str] = []
    size = 0
    for part in template.generate(variables):
        parts.append(part)
        size += len(part)
        _limit(size, MAX_CHARS, "characters")
    return "".join(parts)


def _limit(amount: int | float, most: int, what: str) -> None:
    if amount > most:
        raise SecurityError(f"too many {what}: {amount}, the limit is {most}")


def _step(cost: int = 1) -> None:
    _steps.set(_steps.get(0) + cost)
    _limit(_steps.get(), MAX_STEPS, "steps")


def _weight(*values: Any) -> int:
    """Characters of the values once written out, about; lists within lists can be far larger than they look."""
    size = 0
    left = list(values)
    while left:
        value = left.pop()
        if isinstance(value, dict | list | tuple):
            _step(CALL)
            left.extend(value)
            left.extend(value.values() if isinstance(value, dict) else ())
        else:
            size += len(value) if isinstance(value, str) else 8
        _limit(size + len(left), MAX_CHARS, "characters")
    return size


def _written(value: Any) -> Any:
    """Every value on its way into the text."""
    _weight(value)
    return value


def _concat(parts: list[Any]) -> str:
    """What `~` does."""
    _weight(parts)
    texts = [str(part) for part in parts]
    _limit(sum(map(len, texts)), MAX_CHARS, "characters")
    return "".join(texts)


def _counted(values: Iterable[Any]) -> Iterator[Any]:
    """What a loop goes over."""
    for value in values:
        _step()
        yield value


class _Guards(NodeTransformer):
    """Puts `_counted` into every loop and `_concat` in place of every `~`."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = self._filter(node.iter, "_counted")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return self._filter(nodes.List(node.nodes, lineno=node.lineno), "_concat")

    def _filter(self, node: Any, name: str) -> nodes.Filter:
        return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Generation(Extension):
    """`{% generation %}` marks the assistant's part for training; what stands in it is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Any) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja2's own sandbox (no private attributes, no changes to data) with limits on work and size."""

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,  # constants would be computed while compiling, outside the limits
            extensions=[_Generation, loopcontrols],
            finalize=_written,
        )
        filters = {name: _guarded(name, made) for name, made in self.filters.items() if name not in REMOVED_FILTERS}
        self.filters = filters | {"tojson": _tojson, "_counted": _counted, "_concat": _concat}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        return _Guards().visit(super()._parse(source, name, filename))

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        return attr != "translate" and super().is_safe_attribute(obj, attr, value)

    def unsafe_undefined(self, obj: Any, attribute: str) -> jinja2.Undefined:
        raise SecurityError(f"the attribute {attribute!r} of a {type(obj).__name__} may not be used")

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        _step(CALL)
        method = getattr(__obj, "__wrapped__", __obj)  # Jinja2 wraps `str.format`
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            if method.__name__ == "join" and args:
                args = (list(args[0]), *args[1:])
            own = {name: value for name, value in kwargs.items() if name not in ("_loop_vars", "_block_vars")}
            _check_call(method.__name__, owner, *args, **own)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "%" and isinstance(left, str):
            _check_call("format", left, right)
        elif operator == "+":
            _limit(_length(left) + _length(right), MAX_CHARS, "entries")
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            _limit(bits, MAX_NUMBER, "bits in a number")
        elif operator == "*":
            times = max(value for value in (left, right, 0) if isinstance(value, int))
            _limit((_length(left) + _length(right)) * times, MAX_CHARS, "entries")
        return super().call_binop(context, operator, left, right)


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter within the limits."""
    takes_context = hasattr(function, "jinja_pass_arg")

    @wraps(function)
    def limited(*args: Any, **kwargs: Any) -> Any:
        _step(CALL)
        context, (value, *rest) = (args[:1], args[1:]) if takes_context else ((), args)
        if name == "join":
            value = list(value)
            _check_call(name, str(rest[0] if rest else kwargs.get("d", "")), value)
        elif name in ("string", "urlencode", "e", "escape", "forceescape"):
            _weight(value)
        elif isinstance(value, str):
            _check_call(name, value, *rest, **kwargs)
        else:
            _check_numbers(*rest, *kwargs.values())
        return function(*context, value, *rest, **kwargs)

    return limited


def _check_numbers(*values: Any) -> None:
    for value in values:
        if isinstance(value, int | float):
            _limit(abs(value), MAX_NUMBER, "places or repetitions")


def _check_call(name: str, text: str, *args: Any, **kwargs: Any) -> None:
    """A method or filter of this name on `text`, before it is called."""
    if name in ("format", "format_map"):
        if re.search(r"\d{5}|%[^a-zA-Z%]*\*|:[^{}]*\{", text):
            raise SecurityError(f"the format {text[:40]!r} may ask for any width")
        _limit(len(text) * 2 + _weight(args, kwargs) * (text.count("%") + text.count("{")), MAX_CHARS, "characters")
        return
    _check_numbers(*args, *kwargs.values())
    if name in GROWTH:
        _limit(GROWTH[name](text, *args, **kwargs), MAX_CHARS, "characters")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Plain JSON, which templates are written for; Jinja2's own filter escapes it for HTML."""
    _check_numbers(indent)
    _limit(_weight(value) * (1 + (indent or 0) // 8), MAX_CHARS, "characters")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
