"""Reading a file's declarations by name and type: nothing is guessed, a missing key is refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from turbospark.errors import TurbosparkError

MAX_LAYERS = 4096
LARGEST = 3.4e38  # of a float32, nearly
_REQUIRED: Any = object()
Text: TypeAlias = str  # inside the class these names are methods
Whole: TypeAlias = int


class Keys:
    """Typed access to a mapping; `prefix` is put before every name ("llama." in a GGUF)."""

    def __init__(self, values: Mapping[Text, Any], where: Text, prefix: Text = ""):
        self.values, self.where, self.prefix = values, where, prefix

    def has(self, name: Text) -> bool:
        return self.values.get(self.prefix + name) is not None

    def get(self, name: Text, default: Any = None) -> Any:
        value = self.values.get(self.prefix + name)
        return default if value is None else value

    def int(self, name: Text, default: Any = _REQUIRED, minimum: int = 0) -> Any:
        """A whole number, at least `minimum`."""
        value = self._value(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, value, "a whole number")
        if not minimum <= value < 1 << 31:
            raise self.wrong(name, value, f"a whole number from {minimum} to {(1 << 31) - 1}")
        return value

    def layers(self, name: Text, default: Any = _REQUIRED, minimum: Whole = 0) -> Any:
        """A number of layers. Each becomes an object, so one number must not ask for billions."""
        count = self.int(name, default, minimum)
        if count is not default and count > MAX_LAYERS:
            raise self.wrong(name, count, f"at most {MAX_LAYERS}")
        return count

    def float(self, name: Text, default: Any = _REQUIRED, minimum: Any = -LARGEST) -> Any:
        """A number that float32 can hold, at least `minimum`: formulas over it then stay finite in Python."""
        value = self._value(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not -LARGEST <= value <= LARGEST:
            raise self.wrong(name, value, "a finite number of float32")
        if value < minimum:
            raise self.wrong(name, value, f"at least {minimum:g}")
        return float(value)

    def bool(self, name: Text, default: Any = _REQUIRED) -> Any:
        value = self._value(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def str(self, name: Text, default: Any = _REQUIRED) -> Any:
        value = self._value(name, default)
        if value is default and default is not _REQUIRED:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, value, "a text")
        return value

    def one_of(self, name: Text, known: Sequence[Any], default: Any = _REQUIRED) -> Any:
        """A value out of a known few."""
        value = self._value(name, default)
        if value not in known:
            raise self.wrong(name, value, "one of " + ", ".join(map(repr, known)))
        return value

    def per_layer(self, name: Text, count: Whole, default: Any = _REQUIRED) -> tuple[Whole, ...]:
        """A whole number for every layer, from one number or from a list of `count`."""
        value = self._value(name, default)
        if isinstance(value, int) and not isinstance(value, bool):
            return (self.int(name, default),) * count
        if not isinstance(value, list | tuple) or len(value) != count or not all(isinstance(v, int) for v in value):
            raise self.wrong(name, value, f"a whole number or a list of {count}")
        return tuple(int(v) for v in value)

    def each_of(self, name: Text, count: Whole, known: Sequence[Any]) -> tuple[Any, ...]:
        """A list of `count`, each out of a known few."""
        value = self._value(name, _REQUIRED)
        if not isinstance(value, list | tuple) or len(value) != count or not all(v in known for v in value):
            raise self.wrong(name, value, f"a list of {count}, each one of " + ", ".join(map(repr, known)))
        return tuple(value)

    def section(self, name: Text) -> Keys:
        """The keys of a nested object; none where it is absent."""
        value = self.get(name, {})
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return Keys(value, f"{self.where}: {self.prefix}{name}")

    def refuse(self, names: Mapping[Text, Any]) -> None:
        """Refuses, by name, declarations this family does not implement; the values given are the neutral ones."""
        for name, neutral in names.items():
            if self.has(name) and self.get(name) != neutral:
                raise TurbosparkError(
                    "unsupported_feature",
                    f"{self.where}: {self.prefix}{name} is {self.get(name)!r}; only {neutral!r} is implemented here",
                )

    def wrong(self, name: Text, value: Any, wanted: Text) -> TurbosparkError:
        shown = repr(value) if len(repr(value)) < 60 else repr(value)[:57] + "..."
        return TurbosparkError("bad_config", f"{self.where}: {self.prefix}{name} is {shown}; it must be {wanted}")

    def _value(self, name: Text, default: Any) -> Any:
        value = self.values.get(self.prefix + name)
        if value is not None:
            return value
        if default is _REQUIRED:
            raise TurbosparkError("missing_key", f"{self.where}: {self.prefix}{name} is missing")
        return default
