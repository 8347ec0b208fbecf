"""Tokenizers from Hugging Face folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.tiny.tokenizers import BOS, CHAT, END, EOS, bpe_metadata, write_tokenizer_json
from tests.tokenizer.text import mixture
from turbospark.errors import TurbosparkError
from turbospark.tokenizer import load_tokenizer
from turbospark.tokenizer.from_gguf import from_gguf

HELLO = [{"role": "user", "content": "hello"}]


def write(folder: Path, **files: Any) -> Path:
    """JSON files by name without their ending, over what is there."""
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def edit(folder: Path, **sections: Any) -> Path:
    """Replaces sections of tokenizer.json."""
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | sections))
    return folder


def template_processing(*before: str) -> dict[str, Any]:
    """A post-processor that puts special tokens before a text."""
    special = {BOS: 256, EOS: 257, END: 259}
    return {
        "type": "TemplateProcessing",
        "single": [
            *({"SpecialToken": {"id": t, "type_id": 0}} for t in before),
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [special[t]], "tokens": [t]} for t in before},
    }


def test_the_folder_and_the_gguf_of_one_tokenizer_agree(tmp_path: Path) -> None:
    folder, gguf = load_tokenizer(write_tokenizer_json(tmp_path)), from_gguf(bpe_metadata())
    text = mixture(5_000) + f"{END}<think>{BOS}"
    for special in (True, False):
        assert folder.encode(text, special=special) == gguf.encode(text, special=special)
    assert [folder.piece(i) for i in range(folder.vocab_size)] == [gguf.piece(i) for i in range(gguf.vocab_size)]
    assert folder.end_ids == gguf.end_ids
    assert folder.chat(HELLO) == gguf.chat(HELLO)


def test_transformers_reads_the_same_ids_and_text(tmp_path: Path) -> None:
    ours, theirs = load_tokenizer(write_tokenizer_json(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    text = mixture(3_000) + f"{END}<think>"
    ids = theirs.encode(text)
    assert ours.encode(text) == ids
    assert (
        ours.decode(ids)
        == theirs.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        == text[: -len(END) - 7] + "<think>"
    )


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert load_tokenizer(write(tmp_path, config={"eos_token_id": 2})) is None


@pytest.mark.parametrize("name", ["tokenizer.model", "vocab.json"])
def test_a_tokenizer_of_another_kind_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"{}")
    with pytest.raises(TurbosparkError, match=name) as error:
        load_tokenizer(tmp_path)
    assert error.value.code == "unsupported_tokenizer"


@pytest.mark.parametrize(
    ("before", "declared", "prefix"),
    [
        ([], {}, ()),
        ([BOS], {}, (256,)),
        ([BOS, END], {}, (256, 259)),
        ([], {"add_bos_token": True}, (256,)),
        ([BOS], {"add_bos_token": False}, ()),
        ([], {"add_bos_token": None}, ()),
    ],
)
def test_what_stands_before_a_text(before: list[str], declared: Any, prefix: Any, tmp_path: Path) -> None:
    folder = edit(write_tokenizer_json(tmp_path, **declared), post_processor=template_processing(*before))
    ours = load_tokenizer(folder)
    assert (ours.prefix, ours.bos_id) == (prefix, 256)
    assert tuple(ours.encode("hello")) == (*prefix, 264)
    if not declared:  # transformers 5 does not look at add_bos_token; its version 4 and the makers of GGUF files do
        assert AutoTokenizer.from_pretrained(folder).encode("hello") == ours.encode("hello")


def test_ends_of_all_files_are_joined(tmp_path: Path) -> None:
    folder = write(
        write_tokenizer_json(tmp_path),
        config={"eos_token_id": 65, "text_config": {"eos_token_id": [66]}},
        generation_config={"eos_token_id": [257, 67]},
    )
    assert load_tokenizer(folder).end_sources == {
        65: ["config.json eos_token_id"],
        66: ["config.json text_config.eos_token_id"],
        67: ["generation_config.json eos_token_id"],
        257: ["generation_config.json eos_token_id", "tokenizer_config.json eos_token"],
        259: ["named <|im_end|>"],
    }


@pytest.mark.parametrize("nested", [5, [1], "x", True])
def test_a_text_config_that_is_no_object_names_no_end(nested: Any, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(write_tokenizer_json(tmp_path), config={"text_config": nested, "eos_token_id": 3}))
    assert 3 in tokenizer.end_ids


@pytest.mark.parametrize("token", ["\ud800", {"content": "a\udfff"}])
def test_a_declared_token_that_is_no_text_is_refused(token: Any, tmp_path: Path) -> None:
    folder = write_tokenizer_json(tmp_path, pad_token=token)
    with pytest.raises(TurbosparkError, match="surrogate") as caught:
        load_tokenizer(folder)
    assert caught.value.code == "bad_tokenizer"


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"config": {"eos_token_id": 277}}, "config.json eos_token_id is 277, but the vocabulary has 277"),
        ({"generation_config": {"eos_token_id": [1, "2"]}}, "generation_config.json eos_token_id .* '2'"),
        ({"config": {"eos_token_id": True}}, "config.json eos_token_id .* True"),
        ({"tokenizer_config": {"eos_token": "<none>"}}, "eos_token is '<none>'"),
        ({"tokenizer_config": {"add_bos_token": True}}, "no bos_token"),
        ({"tokenizer_config": {"chat_template": 5}}, "chat template"),
        ({"tokenizer": {"model": {"type": "BPE"}}}, "tokenizer.json cannot be read"),
    ],
)
def test_files_that_do_not_fit_are_named(files: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(TurbosparkError, match=words) as error:
        load_tokenizer(write(write_tokenizer_json(tmp_path), **files))
    assert error.value.code == "bad_tokenizer"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Replace", "pattern": {"String": "_"}, "content": " "},
    ],
)
def test_a_decoder_without_exact_bytes_is_refused(decoder: Any, tmp_path: Path) -> None:
    with pytest.raises(TurbosparkError, match="decoder") as error:
        load_tokenizer(edit(write_tokenizer_json(tmp_path), decoder=decoder))
    assert error.value.code == "unsupported_tokenizer"


SPACES = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
PREPEND = {"type": "Prepend", "prepend": "\u2581"}
TO_SPACES = {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}


@pytest.mark.parametrize("adds_space", [True, False])
def test_a_sentencepiece_folder_decodes_as_transformers_does(adds_space: bool, tmp_path: Path) -> None:
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "b", "\u2581a", "ab"]
    model = {
        "type": "BPE",
        "vocab": {piece: token_id for token_id, piece in enumerate(pieces)},
        "merges": [["\u2581", "a"], ["a", "b"]],
        "unk_token": "<unk>",
        "byte_fallback": True,
    }
    normalizer = {"type": "Sequence", "normalizers": [PREPEND, TO_SPACES] if adds_space else [TO_SPACES]}
    steps = [SPACES, {"type": "ByteFallback"}, {"type": "Fuse"}, *([STRIP] if adds_space else [])]
    decoder = {"type": "Sequence", "decoders": steps}
    added = [
        {
            "id": i,
            "content": pieces[i],
            "special": True,
            "normalized": False,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
        }
        for i in range(3)
    ]
    folder = write_tokenizer_json(
        tmp_path, bos_token="<s>", eos_token="</s>", tokenizer_class="PreTrainedTokenizerFast"
    )
    edit(folder, model=model, normalizer=normalizer, pre_tokenizer=None, decoder=decoder, added_tokens=added)
    ours, theirs = load_tokenizer(folder), AutoTokenizer.from_pretrained(folder)
    assert ours.adds_space is adds_space
    for text in ("a b", " a", "  ab", "\U0001f600 a", "a\n b", ""):
        ids = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, bos=False) == ids
        assert ours.decode(ids) == theirs.decode(ids) == text


def test_chat_templates_of_every_place(tmp_path: Path) -> None:
    folder = write_tokenizer_json(tmp_path, template=None)
    assert not load_tokenizer(folder).has_chat_template
    write(folder, chat_template={"chat_template": "json"})
    assert load_tokenizer(folder).chat(HELLO) == "json"
    named = [{"name": "default", "template": "listed"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    write_tokenizer_json(folder, template=named)
    assert load_tokenizer(folder).chat(HELLO) == "listed"
    assert load_tokenizer(folder).chat(HELLO, tools=[{}, {}]) == "2 tools"
    (folder / "chat_template.jinja").write_text(CHAT)
    assert load_tokenizer(folder).chat(HELLO) == from_gguf(bpe_metadata()).chat(HELLO)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(TurbosparkError, match=r"chat_template\.jinja cannot be read"):
        load_tokenizer(folder)


def test_a_limit_in_tokenizer_json_does_not_cut_texts(tmp_path: Path) -> None:
    truncation = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    ours = load_tokenizer(edit(write_tokenizer_json(tmp_path), truncation=truncation))
    assert len(ours.encode("x y " * 10)) > 20


def test_ids_without_a_text_are_unused(tmp_path: Path) -> None:
    folder = write_tokenizer_json(tmp_path)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    model["vocab"]["last"] = 280
    ours = load_tokenizer(edit(folder, model=model))
    assert ours.vocab_size == 281
    assert (ours.piece(278), ours.piece(280)) == (b"", b"last")
