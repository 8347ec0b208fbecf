"""Lets a trunk write conversations: many sequences step together, each a chat of sampled or given user turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from turbospark.train.noise import gumbel
from turbospark.train.trunk import Trunk

USER, TO_ANSWER, ANSWER, TO_USER = range(4)
PIECE = 64  # positions by which the keys looked at grow


@dataclass(frozen=True)
class Chat:
    """Token ids around turns: a conversation begins with `header`, and a turn ends with `end`.

    turns: False for a model that only goes on with texts; then it goes on behind an end as well.
    """

    header: tuple[int, ...]
    end: int
    ends: frozenset[int]
    to_answer: tuple[int, ...]
    to_user: tuple[int, ...]
    turns: bool = True

    def opening(self, start: Start) -> list[int]:
        """What is given of a sequence."""
        answered = (self.end, *self.to_answer) if start.whole and self.turns else ()
        return [*self.header, *start.words, *answered]


class Start(NamedTuple):
    """How a sequence begins: the words of the first user turn, and whether they are all of it.

    temperature: of the answers. limit: tokens of an answer. key: of the sequence's noise.
    """

    words: Sequence[int]
    whole: bool
    temperature: float
    limit: int
    key: int


class Written(NamedTuple):
    """tokens int32 [S, T]; answer bool [S, T]: tokens that the trunk chose as an answer, its end included.

    keys int64 [S] and temperature [S]: the noise that answers were drawn with.
    """

    tokens: Tensor
    answer: Tensor
    keys: Tensor
    temperature: Tensor


class Writer:
    """The state of S sequences; `step` moves all by one position. Nothing in it depends on a sequence's neighbours."""

    user_temperature, shortest, longest = 0.8, 3, 96  # of sampled user turns

    def __init__(self, trunk: Trunk, chat: Chat, starts: Sequence[Start], length: int):
        self.trunk, self.length = trunk, length
        count, device = len(starts), trunk.device
        firsts = [chat.opening(s) for s in starts]
        tensor = lambda values, dtype=torch.int64: torch.tensor(values, device=device, dtype=dtype)
        widest = max(map(len, firsts))
        self.first = tensor([ids + [0] * (widest - len(ids)) for ids in firsts])
        self.first_length = tensor([len(ids) for ids in firsts])
        self.mode = tensor([ANSWER if s.whole else USER for s in starts])
        self.turn = tensor([0 if s.whole else len(s.words) for s in starts])  # tokens so far, in this mode
        self.temperature = tensor([s.temperature for s in starts], torch.float32)
        self.limit = tensor([s.limit if chat.turns else length + 1 for s in starts])
        self.keys = tensor([s.key for s in starts])
        self.end, self.to_answer, self.to_user = chat.end, tensor(chat.to_answer), tensor(chat.to_user)
        self.is_end = torch.zeros(trunk.config.vocab, dtype=torch.bool, device=device)
        self.is_end[list(chat.ends)] = chat.turns
        self.ids = torch.arange(trunk.config.vocab, device=device)
        self.position = tensor([0])
        self.tokens = torch.zeros(count, length, dtype=torch.int64, device=device)
        self.answer = torch.zeros(count, length, dtype=torch.bool, device=device)
        self.tokens[:, 0] = self.first[:, 0]
        self.state = trunk.state(count, length)
        self.draw: Callable[..., Tensor] = torch.compile(_draw) if device.type == "cuda" else _draw

    def step(self, seen: int) -> None:
        """From the tokens at `position` to those at the next; looks at the first `seen` positions."""
        now = self.tokens.gather(1, self.position.expand(len(self.tokens), 1))[:, 0]
        logits = self.trunk.step(now, self.position, self.state, seen)
        at = self.position + 1
        user = self.mode == USER
        early = (user & (self.turn < self.shortest))[:, None] & self.is_end
        temperature = torch.where(user, self.user_temperature, self.temperature)
        drawn = self.draw(logits, early, temperature, self.keys, at, self.ids)
        token, mode, turn = self._next(drawn)
        given = at < self.first_length
        token = torch.where(
            given, self.first.gather(1, at.clamp(max=self.first.shape[1] - 1).expand(len(token), 1))[:, 0], token
        )
        self.answer.index_copy_(1, at, ((self.mode == ANSWER) & ~given)[:, None])
        self.tokens.index_copy_(1, at, token[:, None])
        self.mode.copy_(torch.where(given, self.mode, mode))
        self.turn.copy_(torch.where(given, self.turn, turn))
        self.position.add_(1)

    def _next(self, drawn: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Token, mode and turn that follow, past the given beginning."""
        mode, turn = self.mode, self.turn
        speaks = (mode == USER) | (mode == ANSWER)
        allowed = torch.where(mode == USER, self.longest, self.limit)
        ends = speaks & (self.is_end[drawn] | (turn + 1 >= allowed))
        line = lambda ids: ids[turn.clamp(max=len(ids) - 1)]
        token = torch.where(mode == TO_ANSWER, line(self.to_answer), line(self.to_user))
        token = torch.where(speaks, torch.where(ends, self.end, drawn), token)
        past = torch.where(mode == TO_ANSWER, len(self.to_answer), len(self.to_user)) <= turn + 1
        leaves = torch.where(speaks, ends, past)
        return token, torch.where(leaves, (mode + 1) % 4, mode), torch.where(leaves, 0, turn + 1)

    def run(self, progress: Callable[[int, int], Any] = lambda done, of: None) -> Written:
        """Writes all positions. On a GPU a step is one graph for each number of positions looked at."""
        steps = self.length - 1
        seen = lambda position: min(self.length, -(-(position + 1) // PIECE) * PIECE)
        on_gpu, warm = self.trunk.device.type == "cuda", 3
        graph, size = None, 0
        with torch.no_grad():
            for position in range(steps):
                if on_gpu and position >= warm:
                    if seen(position) != size:
                        size = seen(position)
                        graph = torch.cuda.CUDAGraph()
                        with torch.cuda.graph(graph):
                            self.step(size)
                    graph.replay()  # type: ignore[union-attr]
                else:
                    self.step(seen(position))
                if position % PIECE == 0:
                    progress(position, steps)
        return Written(self.tokens.to(torch.int32), self.answer, self.keys, self.temperature)


def _draw(logits: Tensor, never: Tensor, temperature: Tensor, keys: Tensor, at: Tensor, ids: Tensor) -> Tensor:
    """The id of the largest logit + temperature * noise: at temperature 0 the likeliest, ties to the lowest."""
    noisy = logits.float() + temperature[:, None] * gumbel(keys[:, None], at, ids)
    return noisy.masked_fill(never, float("-inf")).argmax(-1)


def chat_of(tokenizer: Any) -> Chat:
    """Reads a chat's fixed parts off the model's own template; without one, the model goes on with texts."""
    if not tokenizer.has_chat_template:
        end = min(tokenizer.end_ids, default=0)
        return Chat(tuple(tokenizer.prefix), end, frozenset(tokenizer.end_ids), (end,), (end,), turns=False)
    one, two = (_rendered(tokenizer, words) for words in ("\x11", "\x12"))
    talk = tokenizer.chat(
        [
            {"role": "user", "content": "\x11"},
            {"role": "assistant", "content": "\x12"},
            {"role": "user", "content": "\x13"},
        ]
    )
    before, _, rest = one.partition("\x11")
    between = rest  # what follows a user turn, up to the answer
    after = talk.partition("\x12")[2].partition("\x13")[0]
    if two != one.replace("\x11", "\x12") or not between or not after:
        raise _unclear(tokenizer)
    encode = lambda text: tokenizer.encode(text, special=True, bos=False)
    asks, answers = encode(between), encode(after)
    end = asks[0]
    if end not in tokenizer.end_ids or answers[0] != end:
        raise _unclear(tokenizer)
    header = tokenizer.encode(before, special=True)
    return Chat(tuple(header), end, frozenset(tokenizer.end_ids), tuple(asks[1:]), tuple(answers[1:]))


def _rendered(tokenizer: Any, words: str) -> str:
    return tokenizer.chat([{"role": "user", "content": words}])


def _unclear(tokenizer: Any) -> Exception:
    from turbospark.errors import TurbosparkError

    return TurbosparkError(
        "unclear_chat",
        "the chat template does not end user and assistant turns with one end token, so turns cannot be told apart",
    )
