"""A tokenizer from a Hugging Face folder: tokenizer.json and the files beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from turbospark.errors import TurbosparkError
from turbospark.tokenizer.byte_level import LibraryEncoder
from turbospark.tokenizer.chat import ChatTemplate
from turbospark.tokenizer.end_ids import end_sources
from turbospark.tokenizer.tokenizer import Tokenizer
from turbospark.tokenizer.vocabulary import BYTE, CONTROL, NORMAL, SPACE, UNUSED, USER_DEFINED, Style, Vocabulary

if TYPE_CHECKING:
    import tokenizers

DECODERS = ("ByteLevel", "ByteFallback", "Fuse", "Metaspace", "Replace", "Strip")
OTHER_FILES = ("tokenizer.model", "vocab.json", "tiktoken.model", "vocab.txt")  # tokenizers of other kinds


def from_folder(folder: Path) -> Tokenizer | None:
    """The tokenizer of an HF folder, None when it has no tokenizer files at all.

    Reads tokenizer.json, tokenizer_config.json, special_tokens_map.json, config.json, generation_config.json and the
    chat template's own files. Raises `unsupported_tokenizer` for other kinds of tokenizers, `bad_tokenizer` for files
    that contradict each other, and what `read_object` raises.
    """
    file = folder / "tokenizer.json"
    if not file.exists():
        if others := [name for name in OTHER_FILES if (folder / name).exists()]:
            message = f"{folder} has {others[0]}, but no tokenizer.json"
            raise TurbosparkError("unsupported_tokenizer", message, "convert it with transformers' AutoTokenizer")
        return None
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_file(str(file))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises plain Exception, and a panic is not even that
        raise TurbosparkError("bad_tokenizer", f"{file} cannot be read: {error}") from None
    backend.no_truncation()
    backend.no_padding()
    config = _read(folder / "tokenizer_config.json")
    declared = {**_read(folder / "special_tokens_map.json"), **config}
    tokens = {name: text for name in declared if name.endswith("_token") and (text := _token_text(declared[name]))}
    _add_named(backend, tokens.values())
    style, falls_back, strips = _decoding(backend, file)
    vocabulary = _vocabulary(backend, style, falls_back)
    bos_id = _declared_id(vocabulary, tokens, "bos_token")
    eos_id = _declared_id(vocabulary, tokens, "eos_token")
    return Tokenizer(
        vocabulary,
        lambda: LibraryEncoder(backend, len(vocabulary)),
        prefix=_prefix(backend, config.get("add_bos_token"), bos_id),
        bos_id=bos_id,
        end_sources=end_sources(vocabulary, _declared_ends(folder, eos_id)),
        adds_space=strips,
        template=_template(folder, config, tokens),
    )


def _read(file: Path) -> dict[str, Any]:
    """A JSON object, {} where there is no such file."""
    from turbospark.formats.json_file import read_object

    return read_object(file) if file.exists() else {}


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TurbosparkError("bad_tokenizer", f"{file} cannot be read: {error}") from None


def _token_text(value: Any) -> str | None:
    """A declared token: its text, or an object with the text as `content`."""
    text = value.get("content") if isinstance(value, Mapping) else value
    if not isinstance(text, str):
        return None
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # JSON can spell it, the library cannot look it up
        raise TurbosparkError("bad_tokenizer", f"the declared token {text!r} is half of a surrogate pair, no text")
    return text


def _vocabulary(backend: tokenizers.Tokenizer, style: Style, falls_back: bool) -> Vocabulary:
    """All ids up to the highest; one that no text stands for is unused."""
    ids = backend.get_vocab(with_added_tokens=True)
    count = max(ids.values(), default=-1) + 1
    texts, kinds = [f"[PAD{token_id}]" for token_id in range(count)], bytearray([UNUSED]) * count
    for text, token_id in ids.items():
        is_byte = falls_back and re.fullmatch("<0x[0-9A-F]{2}>", text)
        texts[token_id], kinds[token_id] = text, BYTE if is_byte else NORMAL
    for token_id, token in backend.get_added_tokens_decoder().items():
        kinds[token_id] = CONTROL if token.special else USER_DEFINED
    return Vocabulary(texts, bytes(kinds), style)


def _decoding(backend: tokenizers.Tokenizer, file: Path) -> tuple[Style, bool, bool]:
    """How texts of tokens spell their bytes, whether `<0x..>` are bytes, whether decoding takes a first space off."""
    state: dict[str, Any] = json.loads(backend.decoder.__getstate__()) if backend.decoder else {"type": "none"}
    steps: list[dict[str, Any]] = state["decoders"] if state["type"] == "Sequence" else [state]
    names = [step["type"] for step in steps]
    space = {"pattern": {"String": SPACE}, "content": " "}
    for step in steps:
        if step["type"] not in DECODERS or (step["type"] == "Replace" and not space.items() <= step.items()):
            message = f"the decoder of {file} has the step {step}, which is not supported"
            raise TurbosparkError("unsupported_tokenizer", message, "supported: " + ", ".join(DECODERS))
    if "ByteLevel" in names:
        return "byte_level", False, False
    strips = any(step.get("start") == 1 or step.get("prepend_scheme") in ("always", "first") for step in steps)
    return "spm", "ByteFallback" in names, strips


def _add_named(backend: tokenizers.Tokenizer, texts: Iterable[str]) -> None:
    """Tokens that the configuration names (BOS, EOS, ...) are control tokens, whatever tokenizer.json calls them."""
    from tokenizers import AddedToken

    special = {token.content for token in backend.get_added_tokens_decoder().values() if token.special}
    named = [text for text in dict.fromkeys(texts) if text not in special and backend.token_to_id(text) is not None]
    backend.add_special_tokens([AddedToken(text, normalized=False, special=True) for text in named])


def _declared_id(vocabulary: Vocabulary, tokens: Mapping[str, str], name: str) -> int | None:
    text = tokens.get(name)
    if text is not None and text not in vocabulary.ids:
        message = f"{name} is {text!r}, which is not among the {len(vocabulary)} tokens of tokenizer.json"
        raise TurbosparkError("bad_tokenizer", message, "the files do not belong together")
    return None if text is None else vocabulary.ids[text]


def _prefix(backend: tokenizers.Tokenizer, adds_bos: Any, bos_id: int | None) -> tuple[int, ...]:
    """What stands before every text: the configuration's word on BOS, else what tokenizer.json puts there."""
    if adds_bos is True and bos_id is None:
        raise TurbosparkError("bad_tokenizer", "add_bos_token is true, but tokenizer_config.json has no bos_token")
    if isinstance(adds_bos, bool):
        return (bos_id,) if adds_bos and bos_id is not None else ()
    probe = backend.encode("a")
    text_at = probe.special_tokens_mask.index(0) if 0 in probe.special_tokens_mask else len(probe.ids)
    return tuple(probe.ids[:text_at])


def _declared_ends(folder: Path, eos_id: int | None) -> Iterator[tuple[str, int]]:
    model = _read(folder / "config.json")
    generation = _read(folder / "generation_config.json")
    nested = model.get("text_config")
    declarations = {
        "config.json eos_token_id": model.get("eos_token_id"),
        "config.json text_config.eos_token_id": nested.get("eos_token_id") if isinstance(nested, Mapping) else None,
        "generation_config.json eos_token_id": generation.get("eos_token_id"),
        "tokenizer_config.json eos_token": eos_id,
    }
    for source, value in declarations.items():
        for token_id in value if isinstance(value, list) else [] if value is None else [value]:
            if not isinstance(token_id, int) or isinstance(token_id, bool):
                raise TurbosparkError("bad_tokenizer", f"{source} must be an id or a list of ids, has {token_id!r}")
            yield source, token_id


def _template(folder: Path, config: Mapping[str, Any], tokens: Mapping[str, str]) -> ChatTemplate | None:
    """The default template and the one for tools, from the first place that has any."""
    declared = config.get("chat_template", _read(folder / "chat_template.json").get("chat_template"))
    if isinstance(declared, list):
        named = {entry.get("name"): entry.get("template") for entry in declared if isinstance(entry, Mapping)}
    else:
        named = {"default": declared}
    for name, file in (("default", "chat_template.jinja"), ("tool_use", "additional_chat_templates/tool_use.jinja")):
        if (folder / file).exists():
            named[name] = _read_text(folder / file)
    default, tool_use = named.get("default"), named.get("tool_use")
    for name, source in (("default", default), ("tool_use", tool_use)):
        if not isinstance(source, str | None):
            kind = type(source).__name__
            raise TurbosparkError("bad_tokenizer", f"the chat template {name!r} of {folder} must be text, is a {kind}")
    return None if default is None else ChatTemplate(default, tokens, tool_use)
