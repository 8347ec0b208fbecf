"""What one request asks of the sampler: checked when it is made, completed from the model's own settings."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from turbospark.errors import TurbosparkError

MAX_PROPOSALS = 15  # a verify block is the anchor and its proposals, 16 rows at most
DEFAULTS = {
    "temperature": 0.7,
    "top_k": 0,
    "top_p": 0.95,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
FROM_MODEL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


@dataclass(frozen=True)
class SamplingParams:
    """How a request samples and where it ends. A bad field is refused: TurbosparkError("invalid_parameter").

    A field left None is filled by `resolve`. Lists are kept as tuples, so that the value cannot change later.
    """

    max_new: int | None = None  # tokens to produce, >= 0; None: until the context is full
    temperature: float | None = None  # >= 0; 0 is greedy
    top_k: int | None = None  # 0 and -1: off
    top_p: float | None = None  # 0..1; 1: off
    min_p: float | None = None  # 0..1, relative to the most likely token; 0: off
    repetition_penalty: float | None = None  # > 0, over prompt and output; 1: off
    presence_penalty: float | None = None  # -2..2, over the output
    frequency_penalty: float | None = None  # -2..2, over the output, per occurrence
    logit_bias: Mapping[int, float] | None = None  # token id -> added to its logit; -inf bans it
    seed: int | None = None  # 0..2^64-1; None: drawn by `resolve`
    stop: str | Sequence[str] | None = None  # the text ends before the first of these
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    logprobs: int | None = None  # top-N beside the chosen token; 0: the chosen token only
    speculative: str | int = "auto"  # "off", "auto" or a number of proposals

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None or field.default is not None:
                object.__setattr__(self, field.name, _CHECKS[field.name](field.name, value))

    @property
    def stops(self) -> tuple[bytes, ...]:
        """The stop strings as UTF-8."""
        return tuple(text.encode() for text in (self.stop or ()))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def resolve(self, generation_config: Mapping[str, Any], vocab_size: int) -> SamplingParams:
        """Fill every None but max_new and logprobs: the model's generation config first, then the defaults.

        `do_sample: false` in the config means greedy, unless this request names a temperature. Token ids and
        logprobs are checked against `vocab_size`. A bad value in the config is an error that says so.
        """
        sample = generation_config.get("do_sample")
        if sample is not None and not isinstance(sample, bool):
            raise _refuse("do_sample of the generation config", "true or false", sample)
        named = {name: generation_config.get(name) for name in FROM_MODEL}
        if sample is False:
            named["temperature"] = 0.0
        filled: dict[str, Any] = {"logit_bias": {}, "stop": (), "stop_token_ids": ()}
        for name, neutral in DEFAULTS.items():
            value = named.get(name)
            label = f"{name} of the generation config"
            filled[name] = neutral if value is None else _CHECKS[name](label, value)
        # 53 bits, so that the reported seed survives a JSON reader that knows only doubles.
        filled["seed"] = secrets.randbits(53)
        missing = {name: value for name, value in filled.items() if getattr(self, name) is None}
        resolved = replace(self, **missing)
        resolved._fit(vocab_size)
        return resolved

    def _fit(self, vocab_size: int) -> None:
        for name, ids in (("logit_bias", self.logit_bias), ("stop_token_ids", self.stop_token_ids)):
            for token in ids or ():
                if token >= vocab_size:
                    raise _refuse(f"{name}: token id", f"below the vocabulary size {vocab_size}", token)
        if self.logprobs is not None and self.logprobs > vocab_size:
            raise _refuse("logprobs", f"at most the vocabulary size {vocab_size}", self.logprobs)


def _refuse(name: str, allowed: str, value: object, hint: str = "") -> TurbosparkError:
    try:
        shown = repr(value)
    except ValueError:  # Python prints no integer of more than 4,300 digits
        shown = "a number too long to print"
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    return TurbosparkError("invalid_parameter", f"{name} must be {allowed}, has {shown}", hint)


def _integer(low: int, high: int | None = None):
    allowed = f"an integer of at least {low}" if high is None else f"an integer in [{low}, {high}]"

    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | np.integer):
            raise _refuse(name, allowed, value)
        if value < low or (high is not None and value > high):
            raise _refuse(name, allowed, value)
        return int(value)

    return check


def _number(allowed: str, inside):
    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
            raise _refuse(name, allowed, value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf if value > 0 else -math.inf
        if not inside(number):  # every range is written so that NaN is outside
            raise _refuse(name, allowed, value)
        return number

    return check


_token_id = _integer(0)
_bias = _number("a finite number or -inf", lambda x: x < math.inf)


def _logit_bias(name: str, value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise _refuse(name, "a mapping of token ids to numbers", value)
    return {_token_id(f"{name}: token id", k): _bias(f"{name} of token {k}", v) for k, v in value.items()}


def _items(name: str, value: object, allowed: str) -> tuple:
    if not isinstance(value, list | tuple | set | frozenset):
        raise _refuse(name, allowed, value)
    return tuple(value)


def _stop(name: str, value: object) -> tuple[str, ...]:
    allowed = "a non-empty string or a list of them"
    texts = (value,) if isinstance(value, str) else _items(name, value, allowed)
    for text in texts:
        if not isinstance(text, str) or not text:
            raise _refuse(name, allowed, text)
        if any("\ud800" <= letter <= "\udfff" for letter in text):
            raise _refuse(name, "text without lone surrogates", text)
    return texts


def _stop_token_ids(name: str, value: object) -> tuple[int, ...]:
    return tuple(_token_id(name, token) for token in _items(name, value, "a list of token ids"))


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refuse(name, "true or false", value)
    return value


def _speculative(name: str, value: object) -> str | int:
    if isinstance(value, str) and value in ("off", "auto"):
        return value
    if not isinstance(value, bool) and value == 0:
        raise _refuse(name, f"in [1, {MAX_PROPOSALS}] as a number", value, 'no drafter is spelled "off"')
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and 1 <= value <= MAX_PROPOSALS:
        return int(value)
    raise _refuse(name, f'"off", "auto" or an integer in [1, {MAX_PROPOSALS}]', value)


_CHECKS = {
    "max_new": _integer(0),
    "temperature": _number("a finite number of at least 0", lambda x: 0 <= x < math.inf),
    "top_k": _integer(-1),
    "top_p": _number("a number in [0, 1]", lambda x: 0 <= x <= 1),
    "min_p": _number("a number in [0, 1]", lambda x: 0 <= x <= 1),
    "repetition_penalty": _number("a finite number above 0", lambda x: 0 < x < math.inf),
    "presence_penalty": _number("a number in [-2, 2]", lambda x: -2 <= x <= 2),
    "frequency_penalty": _number("a number in [-2, 2]", lambda x: -2 <= x <= 2),
    "logit_bias": _logit_bias,
    "seed": _integer(0, 2**64 - 1),
    "stop": _stop,
    "stop_token_ids": _stop_token_ids,
    "ignore_eos": _flag,
    "logprobs": _integer(0),
    "speculative": _speculative,
}
