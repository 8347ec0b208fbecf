"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.chat import ChatTemplate
from turbospark.tokenizer.vocabulary import CONTROL, UNKNOWN, Vocabulary


class Encoder(Protocol):
    """Ids of a text, with nothing before or after it. special: whether control tokens in the text are found."""

    def encode(self, text: str, special: bool) -> list[int]: ...


@dataclass
class Tokenizer:
    """Text to ids through an `Encoder`, ids to text from the vocabulary's own bytes.

    vocabulary: texts and kinds of all ids.
    build: makes the encoder; called once, at the first `encode`, since decoding does not need it.
    prefix: ids that the model declares before every text, its BOS as a rule.
    bos_id: the declared BOS, even when the model does not want it added.
    end_sources: each id that ends a text -> the declarations that say so.
    adds_space: SentencePiece's dummy prefix: `encode` puts one space before the text, `decode` takes it off.
    template: the model's chat template, if it has one.
    """

    vocabulary: Vocabulary = field(repr=False)
    build: Callable[[], Encoder] = field(repr=False)
    prefix: tuple[int, ...] = ()
    bos_id: int | None = None
    end_sources: Mapping[int, Sequence[str]] = field(default_factory=dict)
    adds_space: bool = False
    template: ChatTemplate | None = field(default=None, repr=False)

    @cached_property
    def encoder(self) -> Encoder:
        return self.build()

    @property
    def vocab_size(self) -> int:
        return len(self.vocabulary)

    @property
    def end_ids(self) -> frozenset[int]:
        return frozenset(self.end_sources)

    @property
    def has_chat_template(self) -> bool:
        return self.template is not None

    def encode(self, text: str, *, special: bool = True, bos: bool = True) -> list[int]:
        """Token ids of `text`; of "" only what the model puts before every text.

        special: texts of control tokens become those tokens (for rendered chats); False: they are plain text.
        bos: put the model's declared prefix first, unless the text already begins with it.
        Lone surrogates are read as U+FFFD. A byte that the vocabulary cannot spell gives no token.
        """
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        ids = self.encoder.encode(text, special)
        if bos and tuple(ids[: len(self.prefix)]) != self.prefix:
            return [*self.prefix, *ids]
        return ids

    def decode(self, ids: Iterable[int], *, whole: bool = True) -> str:
        """The joined bytes of the ids as text; what is not UTF-8 shows as U+FFFD.

        whole: the ids begin a text, so the one space that `encode` put before it is taken off; False for ids that
        go on from others. Raises `token_out_of_range`.
        """
        data = b"".join(map(self.piece, ids))
        if whole and self.adds_space:
            data = data.removeprefix(b" ")
        return data.decode("utf-8", "replace")

    def piece(self, token_id: int) -> bytes:
        """The exact bytes of one token, b"" for those that are no text. Raises `token_out_of_range`."""
        return self.vocabulary.piece(token_id)

    def token_text(self, token_id: int) -> str:
        """The token as the file writes it (`<|im_end|>`, `\u0120the`). Raises `token_out_of_range`."""
        return self.vocabulary.texts[self.vocabulary.check(token_id)]

    def is_control(self, token_id: int) -> bool:
        return self.vocabulary.kinds[self.vocabulary.check(token_id)] in (CONTROL, UNKNOWN)

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **kwargs: Any,
    ) -> str:
        """The conversation as the model's template writes it, ready for `encode`. See `ChatTemplate.render`.

        Raises `no_chat_template` and the errors of `render`.
        """
        if self.template is None:
            raise TurbosparkError(
                "no_chat_template",
                "the model has no chat template, so messages cannot be turned into a prompt",
                "pass one string as a raw completion (--raw), or give a template",
            )
        return self.template.render(messages, add_generation_prompt=add_generation_prompt, tools=tools, **kwargs)
