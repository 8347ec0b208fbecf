"""Drafters in an install: added to it, or come with its source; they propose what they propose outside."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import turbospark
from tests.draft.test_load import proposals
from tests.store.test_round_trip import contents
from tests.tiny import mtp, qwen3_5
from tests.tiny.dflash import dflash_arrays, dflash_config, gguf_arrays, gguf_metadata, write_dflash, write_dflash_gguf
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import llama_config
from tests.tiny.safetensors_file import write_hf_folder
from tests.tiny.trunks import CONTEXT, VOCAB, write_llama, write_trunk
from turbospark.cli.main import main
from turbospark.draft.load import load_drafter
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store.repack import import_model
from turbospark.store.verify import verify


def load(path):
    return turbospark.load(path, "reference")


def proposed(lm, named):
    return proposals(lm, load_drafter(named, lm.engine.model, lm.checkpoint, 2, 32))


@pytest.fixture(params=["gguf", "folder"])
def drafter(request, tmp_path):
    config = dflash_config(llama_config(CONTEXT), vocab_size=VOCAB)
    writes = {"gguf": write_dflash_gguf, "folder": write_dflash}[request.param]
    return writes(tmp_path / ("added.gguf" if request.param == "gguf" else "added"), config)


def test_an_added_drafter_is_found_and_proposes_the_same(tmp_path, drafter):
    source = write_llama(tmp_path / "trunk.gguf")
    install = import_model(source, "both", drafter).path
    plain, both = load(source), load(install)
    assert proposed(both, "dflash") == proposed(both, "auto") == proposed(plain, drafter)
    np.testing.assert_array_equal(both.logits([1, 2, 3]), plain.logits([1, 2, 3]))
    assert verify(install) == []


def test_an_added_drafter_is_not_the_trunks(tmp_path, drafter):
    install = import_model(write_llama(tmp_path / "trunk.gguf"), "both", drafter).path
    checkpoint = open_checkpoint(install)
    assert not any(name.startswith("dflash.") for name in checkpoint.tensors)
    assert checkpoint.nbytes == open_checkpoint(tmp_path / "trunk.gguf").nbytes
    assert checkpoint.drafter.nbytes == open_checkpoint(drafter).nbytes
    block = json.loads((install / "manifest.json").read_text())["drafter"]
    assert block["prefix"] == "dflash."


def test_an_install_with_a_drafter_repacks_to_the_same_bytes(tmp_path, drafter):
    first = import_model(write_llama(tmp_path / "trunk.gguf"), "first", drafter).path
    assert contents(import_model(first, "second").path) == contents(first)


def test_an_installs_drafter_serves_another_model(tmp_path, drafter):
    source = write_llama(tmp_path / "trunk.gguf")
    install = import_model(source, "both", drafter).path
    plain = load(source)
    assert proposed(plain, install) == proposed(plain, drafter)


def test_a_drafter_that_brings_a_mask_embedding_keeps_it(tmp_path):
    config = dflash_config(llama_config(CONTEXT), vocab_size=VOCAB, mask_token_id=VOCAB + 3)
    folder = write_dflash(tmp_path / "added", config)
    torch.save(torch.linspace(-1, 1, 32), folder / "mask_embedding.pt")
    source = write_llama(tmp_path / "trunk.gguf")
    install = import_model(source, "both", folder).path
    assert proposed(load(install), "dflash") == proposed(load(source), folder)


def test_a_drafter_that_does_not_fit_is_refused_before_anything_is_written(tmp_path, home):
    config = dflash_config(llama_config(CONTEXT), vocab_size=VOCAB + 1)
    with pytest.raises(TurbosparkError) as caught:
        import_model(write_llama(tmp_path / "trunk.gguf"), "both", write_dflash(tmp_path / "added", config))
    assert caught.value.code == "drafter_unfit"
    assert f"{VOCAB + 1}" in caught.value.message
    assert [path.suffix for path in home.iterdir()] == [".lock"]


def test_a_drafter_inside_the_sources_own_file_stays_where_it_is(tmp_path):
    model = llama_config(CONTEXT)
    config = dflash_config(model, vocab_size=VOCAB)
    inside = {f"dflash.{name}": values for name, values in gguf_arrays(dflash_arrays(config)).items()}
    trunk = open_checkpoint(write_llama(tmp_path / "trunk.gguf"))
    arrays = {
        name: np.frombuffer(trunk.open(name).data, np.float32).reshape(i.shape) for name, i in trunk.tensors.items()
    }
    declared = {k: v for k, v in gguf_metadata(config).items() if k.startswith("dflash.")} | {"dflash.mask_token_id": 0}
    source = write_gguf(tmp_path / "both.gguf", {**trunk.metadata, **declared}, {**arrays, **inside})
    install = import_model(source, "both").path
    assert proposed(load(install), "dflash") == proposed(load(source), "dflash")
    with pytest.raises(TurbosparkError, match="among its own tensors"):
        import_model(source, "more", write_dflash(tmp_path / "added", config))


@pytest.mark.parametrize("family", ["hybrid", "deepseek2"])
def test_an_mtp_head_of_the_source_survives(tmp_path, family):
    source = write_trunk(tmp_path, family)
    install = import_model(source, "head").path
    assert proposed(load(install), "mtp") == proposed(load(source), "mtp")
    assert verify(install) == []


def test_an_mtp_head_of_a_gguf_survives_with_its_norms_as_they_are(tmp_path):
    model = qwen3_5.hf_model(False, vocab_size=VOCAB, max_position_embeddings=CONTEXT)
    head = mtp.qwen_mtp_gguf(mtp.qwen_mtp(model.config), 4)
    keys = qwen3_5.gguf_metadata(model.config) | {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    source = write_gguf(tmp_path / "head.gguf", keys, qwen3_5.gguf_arrays(model) | head)
    first = import_model(source, "first").path
    second = import_model(first, "second").path
    assert proposed(load(second), "mtp") == proposed(load(first), "mtp") == proposed(load(source), "mtp")


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_a_head_of_one_file_is_added_to_the_trunk_of_another(tmp_path, kind):
    """Norms are offsets in a folder and factors in a GGUF; the head keeps the convention of its own file."""
    model = qwen3_5.hf_model(False, vocab_size=VOCAB, max_position_embeddings=CONTEXT)
    arrays = mtp.qwen_mtp(model.config)
    if kind == "gguf":
        keys = qwen3_5.gguf_metadata(model.config) | {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
        head = write_gguf(tmp_path / "head.gguf", keys, qwen3_5.gguf_arrays(model) | mtp.qwen_mtp_gguf(arrays, 4))
    else:
        head = write_hf_folder(tmp_path / "head", {**model.config.to_dict(), "mtp_num_hidden_layers": 1}, arrays)
    source = write_trunk(tmp_path, "hybrid", head=False)
    install = import_model(source, "both", head).path
    plain, both = load(source), load(install)
    assert proposed(both, "mtp") == proposed(plain, head)
    assert contents(import_model(install, "again").path) == contents(install)
    assert verify(install) == []


def test_a_head_with_experts_of_its_own_stays_out_of_the_packed_ones(tmp_path):
    install = import_model(write_trunk(tmp_path, "deepseek2"), "head").path
    checkpoint = open_checkpoint(install)
    layers = {name.split(".")[2] for name, info in checkpoint.tensors.items() if "packed_experts" in str(info.file)}
    assert layers == {"1", "2"}
    assert any(name.startswith("model.layers.3.mlp.experts.") for name in checkpoint.tensors)


def test_the_command_takes_a_drafter_and_info_says_that_it_is_there(tmp_path, drafter, capsys):
    source = write_llama(tmp_path / "trunk.gguf")
    assert main(["import", str(source), "--alias", "both", "--drafter", str(drafter)]) == 0
    assert "both: " in capsys.readouterr().err
    assert main(["info", "both"]) == 0
    out = capsys.readouterr().out
    assert "install of a GGUF" in out
    assert "drafter        one was added to it" in out


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
def test_a_drafter_stays_as_it_is_when_the_trunk_is_quantised(tmp_path, format):
    model = llama_config(CONTEXT)
    config = dflash_config(model, vocab_size=VOCAB, num_attention_heads=8, intermediate_size=64)
    drafter = write_dflash_gguf(tmp_path / "d.gguf", config, format=format)
    install = import_model(write_llama(tmp_path / "trunk.gguf"), "small", drafter, "q8_0").path
    checkpoint = open_checkpoint(install)
    assert checkpoint.tensors["blk.0.attn_q.weight"].format == "Q8_0"
    assert checkpoint.drafter.tensors["fc.weight"].format == format
    assert proposed(load(install), "dflash")
