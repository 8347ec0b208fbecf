"""A token is a pure function of logits, seed, position and history: Gumbel-max over shaped logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from turbospark.engine.noise import gumbel
from turbospark.engine.params import SamplingParams
from turbospark.errors import TurbosparkError

_HEAD = 1024  # first guess at how many tokens hold the mass of top_p
_LARGEST = np.finfo(np.float64).max


@dataclass(frozen=True)
class Drawn:
    """A drawn token; log-probabilities are those of the raw logits, present only when asked for."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()  # the most likely ids, best first, ties to the lowest id


class Sampler:
    """Draws the tokens of one request. `params` must be resolved; prompt ids lie in [0, vocab_size)."""

    def __init__(self, params: SamplingParams, prompt_ids: Sequence[int], vocab_size: int) -> None:
        self.params: Any = params  # resolved: of the fields read here only logprobs can be None
        self.vocab_size = vocab_size
        p = self.params
        self._penalties = (p.repetition_penalty, p.presence_penalty, p.frequency_penalty) != (1.0, 0.0, 0.0)
        self._bias_ids = np.fromiter(p.logit_bias or (), np.int64)
        self._bias = np.fromiter((p.logit_bias or {}).values(), np.float64)
        self._seen = np.zeros(vocab_size if self._penalties else 0, bool)  # in prompt or output
        self._counts = np.zeros(len(self._seen), np.int64)  # in the output
        if self._penalties:
            self._seen[self._ids(prompt_ids)] = True

    def draw(self, logits: np.ndarray, position: int, extra: Sequence[int] = ()) -> Drawn:
        """The token at `position` from its float32 [vocab_size] logits. Changes nothing.

        position: the drawn token's own; the first after a prompt of P tokens has P. extra: tokens accepted
        before it in the same block, not yet recorded. Errors: non_finite_logits, nothing_to_sample,
        shape_mismatch, invalid_token.

        Order: logit bias, repetition, frequency and presence penalties, temperature, top-k, top-p (within the
        top-k), min-p, noise. Of equal logits the lowest id ranks first.
        """
        if logits.shape != (self.vocab_size,):
            raise TurbosparkError(
                "shape_mismatch",
                f"logits at position {position}: needs [{self.vocab_size}], has {[*logits.shape]}",
            )
        best = int(logits.argmax())  # a NaN counts as the largest, so this one pass checks them all
        _finite(logits[best], position)
        values = self.shape(logits, extra)
        if values is not logits:
            best = int(values.argmax())
            if values[best] == -np.inf:
                raise TurbosparkError(
                    "nothing_to_sample",
                    f"position {position}: logit_bias bans every token that has a chance",
                    "leave at least one token id without a bias of -inf",
                )
        if self.params.greedy:
            token = best
        else:
            token = draw_from(*survivors(values, self.params), self.params.temperature, self.params.seed, position)
        return self._report(token, logits)

    def record(self, tokens: Sequence[int]) -> None:
        """Add final tokens to the history that the penalties look at."""
        if self._penalties and len(tokens):
            ids = self._ids(tokens)
            self._seen[ids] = True
            np.add.at(self._counts, ids, 1)

    def _ids(self, tokens: Sequence[int]) -> np.ndarray:
        ids = np.asarray(tokens, np.int64)
        wrong = ids[(ids < 0) | (ids >= self.vocab_size)]
        if len(wrong):
            raise TurbosparkError(
                "invalid_token", f"token id {wrong[0]} is outside the vocabulary of {self.vocab_size} tokens"
            )
        return ids

    def shape(self, logits: np.ndarray, extra: Sequence[int] = ()) -> np.ndarray:
        """The logits after bias and penalties: float64, or `logits` itself when there are none."""
        if not self._penalties and not len(self._bias_ids):
            return logits
        values = logits.astype(np.float64)
        values[self._bias_ids] += self._bias
        if self._penalties:
            self._penalise(values, extra)
        return values

    def _penalise(self, values: np.ndarray, extra: Sequence[int]) -> None:
        """Repetition as in transformers (prompt and output), the other two as in OpenAI's API (output)."""
        seen, counts = self._seen, self._counts
        if len(extra):
            seen, counts, more = seen.copy(), counts.copy(), self._ids(extra)
            seen[more] = True
            np.add.at(counts, more, 1)
        ids = np.flatnonzero(seen)
        old, count = values[ids], counts[ids]
        p = self.params
        with np.errstate(over="ignore"):
            new = np.where(old > 0, old / p.repetition_penalty, old * p.repetition_penalty)
        new -= p.frequency_penalty * count + p.presence_penalty * (count > 0)
        # A penalty that overflows is no ban, and no infinity.
        values[ids] = np.where(old == -np.inf, old, np.clip(new, -_LARGEST, _LARGEST))

    def _report(self, token: int, logits: np.ndarray) -> Drawn:
        if self.params.logprobs is None:
            return Drawn(token)
        raw = logits.astype(np.float64)
        raw -= raw.max()
        raw -= np.log(np.exp(raw).sum())
        ids = largest(logits, self.params.logprobs)
        ids = ids[np.argsort(-logits[ids], kind="stable")]
        return Drawn(token, float(raw[token]), tuple((int(i), float(raw[i])) for i in ids))


def draw_from(ids: np.ndarray, scores: np.ndarray, temperature: float, seed: int, position: int) -> int:
    """The token drawn among candidates `ids` [n] with logits `scores` [n], in any order; n >= 1.

    Temperature 0 takes the best; above, the id whose score / temperature + noise(seed, position, id) is
    largest, so that two callers with similar scores draw alike. Ties to the lowest id.
    Errors: non_finite_logits.
    """
    scores = np.asarray(scores)
    _finite(scores.max(), position)
    if temperature > 0:
        scores = _scores(scores, temperature) + gumbel(seed, position, ids)
    return int(ids[scores == scores.max()].min())


def survivors(values: np.ndarray, params: Any) -> tuple[np.ndarray, np.ndarray]:
    """The ids [n] that top-k, top-p and min-p leave, ascending, and their values; the best is always there.

    values: [vocab], of which the best is finite. params: resolved, with a temperature above 0.
    """
    ids = np.arange(len(values))
    if 0 < params.top_k < len(values):
        ids = largest(values, params.top_k)
        values = values[ids]
    if params.top_p < 1:
        kept = _nucleus(values, params.temperature, params.top_p)
        ids, values = ids[kept], values[kept]
    if params.min_p > 0:
        kept = _scores(values, params.temperature) >= np.log(params.min_p)
        ids, values = ids[kept], values[kept]
    return ids, values


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Ids of the `count` largest values (or all), ascending; at the border the lowest ids of equal values."""
    if count >= len(values):
        return np.arange(len(values))
    if count <= 0:
        return np.arange(0)
    border = np.partition(values, len(values) - count)[len(values) - count]
    above = np.flatnonzero(values > border)
    level = np.flatnonzero(values == border)[: count - len(above)]
    return np.sort(np.concatenate((above, level)))


def _scores(values: np.ndarray, temperature: float) -> np.ndarray:
    """Logits over temperature, relative to the best: float64, 0 at most; no temperature makes them NaN."""
    scores = values.astype(np.float64)
    with np.errstate(over="ignore"):
        scores -= scores.max()
        scores /= temperature
    return scores


def _nucleus(values: np.ndarray, temperature: float, top_p: float) -> np.ndarray:
    """Indices, ascending, of the fewest best values whose probability reaches `top_p`; at least one."""
    mass = _scores(values, temperature)
    np.exp(mass, out=mass)
    target = top_p * mass.sum()
    size = _HEAD
    while True:
        head = largest(values, size)
        head = head[np.argsort(-values[head], kind="stable")]
        reached = np.cumsum(mass[head])
        if reached[-1] >= target or size >= len(values):
            return np.sort(head[: np.searchsorted(reached, target) + 1])
        size *= 8


def _finite(best: np.floating, position: int) -> None:
    if not np.isfinite(best):
        raise TurbosparkError(
            "non_finite_logits",
            f"position {position}: the best logit must be a finite number, has {best}",
            "the weights may be damaged, or an intermediate value has overflowed",
        )
