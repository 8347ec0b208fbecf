"""Ids and texts equal those of the tokenizers that the models were published with, rebuilt by their definition."""

from __future__ import annotations

from functools import partial

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tests.tokenizer.models import gemma3, smollm2
from tests.tokenizer.text import characters, mixture, source_code
from turbospark import tokenizer as ours
from turbospark.formats import open_checkpoint
from turbospark.tokenizer.from_gguf import from_gguf
from turbospark.tokenizer.vocabulary import BYTE, CONTROL, USER_DEFINED, byte_alphabet

TEXT = source_code(100_000) + characters(30_000) + mixture(40_000)


def with_special_tokens(backend: Tokenizer, model: ours.Tokenizer) -> Tokenizer:
    token = partial(AddedToken, normalized=False)
    backend.add_special_tokens([token(text) for text in model.vocabulary.of_kind(CONTROL)])
    backend.add_tokens([token(text) for text in model.vocabulary.of_kind(USER_DEFINED)])
    backend.encode_special_tokens = True
    return backend


def test_smollm2_is_digits_one_by_one_then_gpt2() -> None:
    metadata = open_checkpoint(smollm2()).metadata
    model = from_gguf(metadata)
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE(model.vocabulary.ids, merges))
    digits, gpt2 = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([digits, gpt2])
    backend.decoder = decoders.ByteLevel()
    with_special_tokens(backend, model)
    absent = {byte for byte, char in enumerate(byte_alphabet()) if char not in model.vocabulary.ids}
    assert len(absent) == 21
    text = "".join(char for char in TEXT if not absent & set(char.encode()))
    ids = backend.encode(text, add_special_tokens=False).ids
    assert model.encode(text, special=False) == ids
    assert model.decode(ids) == backend.decode(ids) == text
    assert model.encode(text.replace("1", "2", 1), special=False) != ids


def test_a_byte_that_smollm2_cannot_spell_gives_nothing_and_keeps_its_neighbours_apart() -> None:
    model = from_gguf(open_checkpoint(smollm2()).metadata)
    dot, dots = model.encode(".")[0], model.encode("..")
    assert len(dots) == 1
    assert model.encode(".\x04.") == [dot, dot]
    assert model.decode(model.encode(".\x04.")) == ".."


def test_gemma_is_bpe_over_every_cut_of_a_piece_in_order_of_score() -> None:
    metadata = open_checkpoint(gemma3()).metadata
    model = from_gguf(metadata)
    texts, scores = model.vocabulary.texts, list(metadata["tokenizer.ggml.scores"])
    pieces = {text for text, kind in zip(texts, model.vocabulary.kinds, strict=True) if kind not in (BYTE, CONTROL)}
    order = sorted((i for i, text in enumerate(texts) if text in pieces), key=lambda i: -scores[i])
    merges = [
        (texts[i][:at], texts[i][at:])
        for i in order
        for at in range(1, len(texts[i]))
        if texts[i][:at] in pieces and texts[i][at:] in pieces
    ]
    backend = Tokenizer(models.BPE(model.vocabulary.ids, merges, byte_fallback=True))
    backend.normalizer = normalizers.Replace(" ", "\u2581")
    backend.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    with_special_tokens(backend, model)
    ids = backend.encode(TEXT, add_special_tokens=False).ids
    assert model.encode(TEXT, special=False, bos=False) == ids
    assert model.decode(ids) == backend.decode(ids) == TEXT.replace("\u2581", " ")
