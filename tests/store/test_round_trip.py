"""An install says what its source says: logits, tokens, drafters, bit for bit; and a second import the same bytes."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest

import turbospark
from tests.store.sources import FOLDERS, GGUFS, IDS, SOURCES
from tests.tiny.alphabet import write_alphabet, write_ids_only
from tests.tiny.hf import arrays, write
from tests.tiny.llama import tiny_llama
from tests.tiny.safetensors_file import write_hf_folder
from tests.tiny.tokenizers import write_tokenizer_json
from turbospark import quant
from turbospark.config.registry import read_config
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store import content
from turbospark.store.repack import import_model
from turbospark.store.verify import verify

TEXT = "Hello, <|im_start|>hello  there \u0301\U0001f600 the end"


def contents(folder):
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_logits_are_those_of_the_source_bit_for_bit(tmp_path, name, backend):
    source = SOURCES[name](tmp_path)
    install = import_model(source, "copy").path
    theirs, ours = (turbospark.load(path, backend).logits(IDS) for path in (source, install))
    np.testing.assert_array_equal(ours, theirs)
    assert verify(install) == []


@pytest.mark.parametrize("name", SOURCES)
def test_a_configuration_is_the_same_number_for_number(tmp_path, name):
    source = SOURCES[name](tmp_path)
    assert read_config(open_checkpoint(import_model(source, "copy").path)) == read_config(open_checkpoint(source))


@pytest.mark.parametrize("name", SOURCES)
def test_a_repack_twice_and_a_repack_of_a_repack_are_the_same_bytes(tmp_path, name):
    source = SOURCES[name](tmp_path)
    first = import_model(source, "first").path
    for alias, again in (("second", source), ("third", first)):
        assert contents(import_model(again, alias).path) == contents(first)


def test_stacks_in_fp8_are_packed_an_expert_each_with_its_own_scales(tmp_path):
    install = open_checkpoint(import_model(FOLDERS["deepseek2 in stacked FP8"](tmp_path), "copy").path)
    codes = [name for name, info in install.tensors.items() if info.format == "F8_E4M3"]
    assert len(codes) == 2 * 8 * 3  # layers, experts, roles
    for name in codes:
        assert install.tensors[name].file.parent.name == "packed_experts"
        assert install.tensors[name + "_scale_inv"].shape == tuple(n // 8 for n in install.tensors[name].shape)
    assert not any(name.endswith(("gate_up_proj", "gate_up_proj_scale_inv")) for name in install.tensors)


@pytest.mark.parametrize("name", ["mixture", "deepseek2"])
def test_an_expert_is_three_tensors_in_one_aligned_stride(tmp_path, name):
    for write_source in (GGUFS[name], FOLDERS[name]):
        checkpoint = open_checkpoint(import_model(write_source(tmp_path), f"copy{len(list(tmp_path.iterdir()))}").path)
        stride, layers = (checkpoint.manifest[key] for key in ("expertStride", "numLayers"))
        assert stride % 4096 == 0
        assert layers == {"mixture": 4, "deepseek2": 2}[name]
        found = {}
        for info in checkpoint.tensors.values():
            if "packed_experts" in str(info.file):
                found.setdefault((info.file, info.offset // stride), []).append(info)
        assert len(found) == layers * 8
        assert {file.name for file, _ in found} == {f"layer_{i:02d}.bin" for i in range(layers)}
        for (_, number), parts in found.items():
            assert len(parts) == 3
            assert all(info.offset % 64 == 0 for info in parts)
            assert max(info.offset + info.nbytes for info in parts) <= (number + 1) * stride


def test_a_gguf_keeps_its_blocks_byte_for_byte(tmp_path):
    source = open_checkpoint(GGUFS["deepseek2"](tmp_path))
    copy = open_checkpoint(import_model(source.path, "copy").path)
    for name, info in source.tensors.items():
        if "_exps" not in name:
            assert copy.tensors[name].format == info.format
            np.testing.assert_array_equal(copy.open(name).data, source.open(name).data)
            continue
        stack = source.open(name).data
        for e in range(8):
            one = copy.open(name.replace("_exps", f"_exps.{e}")).data
            np.testing.assert_array_equal(one, stack[e])


def test_an_expert_out_of_place_shows_in_the_logits(tmp_path):
    install = import_model(GGUFS["mixture"](tmp_path), "copy").path
    before = turbospark.load(install, "reference").logits(IDS)
    path = install / "packed_experts" / "layer_01.bin"
    data, stride = path.read_bytes(), json.loads((install / "manifest.json").read_text())["expertStride"]
    path.write_bytes(data[stride:] + data[:stride])
    assert np.abs(turbospark.load(install, "reference").logits(IDS) - before).max() > 0.05


def test_tensors_of_images_are_left_out_and_named(tmp_path):
    made = import_model(FOLDERS["mixture"](tmp_path), "copy")
    assert [info.name for info in made.left_out] == ["model.visual.patch.weight"]
    assert not any("visual" in name for name in open_checkpoint(made.path).tensors)


@pytest.mark.parametrize("kind", ["gguf", "hf"])
def test_texts_become_the_same_tokens_and_end_by_the_same_ids(tmp_path, kind):
    if kind == "gguf":
        source = write_alphabet(tmp_path / "talking.gguf")
    else:
        source = write_ids_only(tmp_path / "talking")
        write_tokenizer_json(source)
        (source / "generation_config.json").write_text('{"temperature": 0.4, "eos_token_id": [2, 3]}')
    install = import_model(source, "copy").path
    theirs, ours = (turbospark.load(path, "reference") for path in (source, install))
    for special in (True, False):
        assert ours.tokenizer.encode(TEXT, special=special) == theirs.tokenizer.encode(TEXT, special=special)
    talk = [{"role": "user", "content": "x"}]
    assert ours.tokenizer.chat(talk) == theirs.tokenizer.chat(talk)
    assert ours.tokenizer.end_sources == theirs.tokenizer.end_sources
    assert ours.config.generation == theirs.config.generation


def test_bytes_that_are_no_text_survive_in_a_ggufs_metadata(tmp_path):
    odd = "a\udcff\udcfe"
    source = write_alphabet(tmp_path / "odd.gguf", **{"general.name": odd, "odd.list": [odd, ""], "odd.number": 0.1})
    copy, original = open_checkpoint(import_model(source, "copy").path), open_checkpoint(source)
    assert dict(copy.metadata) == dict(original.metadata)
    assert copy.metadata["odd.list"] == [odd, ""]


WIDE = {"hidden_size": 128, "intermediate_size": 192, "num_attention_heads": 4, "head_dim": 32}


@pytest.mark.parametrize(("method", "format"), [("q8_0", "Q8_0"), ("int4", "INT4")])
def test_plain_floats_are_quantised_where_matrices_are(tmp_path, method, format):
    model = tiny_llama(**WIDE)
    source = write(tmp_path / "llama", model)
    install = import_model(source, "small", quantize=method).path
    checkpoint = open_checkpoint(install)
    formats = {name: info.format for name, info in checkpoint.tensors.items()}
    assert {name for name, kept in formats.items() if kept == "F32"} == {n for n in formats if "norm" in n}
    assert set(formats.values()) == {"F32", format}
    rounded = {n: a if "norm" in n else quant.decode(quant.encode(a, format)) for n, a in arrays(model).items()}
    expected = write_hf_folder(tmp_path / "rounded", model.config.to_dict(), rounded)
    theirs, ours = (turbospark.load(path, "reference").logits(IDS) for path in (expected, install))
    np.testing.assert_array_equal(ours, theirs)
    assert verify(install) == []
    assert contents(import_model(install, "again").path) == contents(install)


def rounding(values):
    return quant.decode(quant.encode(values, "INT4"))


def test_quantised_experts_are_packed_with_their_scales(tmp_path):
    from tests.tiny import qwen3_5

    wide = {"hidden_size": 128, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    model = qwen3_5.hf_model(True, **wide)
    source = write(tmp_path / "qwen", model)
    install = import_model(source, "small", quantize="int4").path
    checkpoint = open_checkpoint(install)
    packed = [info for info in checkpoint.tensors.values() if "packed_experts" in str(info.file)]
    assert {info.format for info in packed} == {"INT4"}
    assert all(info.scales.nbytes == info.biases.nbytes == info.nbytes // 16 for info in packed)
    routers = [info for name, info in checkpoint.tensors.items() if name.endswith(("mlp.gate.weight", "_gate.weight"))]
    assert {info.format for info in routers} == {"F32"}
    rounded = {}
    for name, values in arrays(model).items():
        shared = values.ndim == 2 and name.endswith("weight") and not name.endswith(("mlp.gate.weight", "_gate.weight"))
        whole = shared and values.shape[1] % 64 == 0
        rounded[name] = rounding(values) if whole or "experts.down" in name or "experts.gate_up" in name else values
    expected = write_hf_folder(tmp_path / "rounded", model.config.to_dict(), rounded)
    theirs, ours = (turbospark.load(path, "reference").logits(IDS) for path in (expected, install))
    np.testing.assert_array_equal(ours, theirs)
    assert verify(install) == []


def test_what_is_quantised_is_not_quantised_again(tmp_path):
    source = import_model(write(tmp_path / "llama", tiny_llama(**WIDE)), "small", quantize="q8_0").path
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "smaller", quantize="int4")
    assert caught.value.code == "already_quantised"
    assert "model.embed_tokens.weight (Q8_0)" in caught.value.message


def test_what_would_not_run_is_refused_before_anything_is_written(tmp_path, home):
    model = tiny_llama()
    source = write(tmp_path / "llama", model, num_hidden_layers=4)
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "copy")
    assert (caught.value.code, "layers.3." in caught.value.message) == ("missing_tensor", True)
    assert [path.suffix for path in home.iterdir()] == [".lock"]


def test_a_tokenizer_that_cannot_be_read_is_refused_before_anything_is_written(tmp_path, home):
    source = write_ids_only(tmp_path / "folder")
    (source / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(TurbosparkError) as caught:
        import_model(source, "copy")
    assert caught.value.code == "unsupported_tokenizer"
    assert [path.suffix for path in home.iterdir()] == [".lock"]


@pytest.mark.parametrize("method", [None, "int4"])
def test_an_import_holds_pieces_of_the_model_and_never_the_whole(tmp_path, monkeypatch, method):
    monkeypatch.setattr(content, "PIECE", 1 << 16)
    monkeypatch.setattr(content, "ROWS", 1 << 16)
    source = write(tmp_path / "llama", tiny_llama(vocab_size=20_000, hidden_size=256, tie_word_embeddings=True))
    size = (source / "model.safetensors").stat().st_size
    import_model(source, "warm")
    tracemalloc.start()
    try:
        import_model(source, "copy", quantize=method)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > 20_000_000
    assert peak < size / 8


def test_progress_counts_every_byte_once_also_when_it_goes_on(tmp_path):
    told = []
    source = GGUFS["mixture"](tmp_path)

    def stop(done, total):
        told.append((done, total))
        if done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_model(source, "copy", progress=stop)
    again = []
    made = import_model(source, "copy", progress=lambda done, total: again.append((done, total)))
    assert again == sorted(again)
    assert {total for _, total in told + again} == {made.nbytes}
    assert again[-1] == (made.nbytes, made.nbytes)
    listed = json.loads((made.path / "manifest.json").read_text())["files"].values()
    assert sum(entry["size"] for entry in listed) == made.nbytes


@pytest.mark.parametrize("kind", ["mixture", "deepseek2"])
def test_plain_ggufs_are_quantised_too_and_their_routers_stay(tmp_path, kind):
    install = import_model(GGUFS[kind](tmp_path), "small", quantize="q8_0").path
    formats = {name: info.format for name, info in open_checkpoint(install).tensors.items()}
    assert {f for name, f in formats.items() if "ffn_gate_inp" in name or "norm" in name or "bias" in name} == {"F32"}
    assert "Q8_0" in formats.values()
    assert np.isfinite(turbospark.load(install, "reference").logits(IDS)).all()
    assert verify(install) == []
