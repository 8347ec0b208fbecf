"""Faults 23, 24, 26: a drafter whose declarations or tensors do not fit is refused by name, with both numbers."""

import numpy as np
import pytest
import torch

import turbospark
from tests.tiny.dflash import dflash_arrays, dflash_config, gguf_metadata, write_dflash, write_dflash_gguf
from tests.tiny.gguf_file import write_gguf
from tests.tiny.trunks import VOCAB, write_trunk
from turbospark.draft.find import opened
from turbospark.draft.load import blocker
from turbospark.errors import TurbosparkError


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return turbospark.load(write_trunk(tmp_path_factory.mktemp("trunk"), "llama"), "reference", slots=2, chunk=32)


def reason(lm, path):
    return blocker(opened(path, lm.config), lm.engine.model, lm.checkpoint)


@pytest.mark.parametrize("second", [True, False])
@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"hidden_size": 48}, "hidden size is 48, the model's is 32"),
        ({"vocab_size": 12}, "vocabulary is 12, the model's is 11"),
        ({"target_layer_ids": [0, 2]}, "reads layer 2 .*layers are 0 to 1"),
        ({"target_layer_ids": [-1, 1]}, "reads layer -1 .*layers are 0 to 1"),
        ({"target_layer_ids": [1, 1]}, r"reads a layer twice .*\[1, 1\]"),
        ({"target_layer_ids": None}, "target_layer_ids is None.*never guessed"),
        ({"target_layer_ids": []}, r"target_layer_ids is \[\].*never guessed"),
        ({"target_layer_ids": [0, True]}, "target_layer_ids.*never guessed"),
        ({"target_layer_ids": [0, "1"]}, "target_layer_ids.*never guessed"),
        ({"num_target_layers": 3}, "a model of 3 layers, this one has 2"),
        ({"mask_token_id": 11}, "mask_token_id is 11, outside the model's vocabulary of 11"),
        ({"mask_token_id": -1}, "mask_token_id is -1"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"num_attention_heads": 3}, "3 heads cannot share 2 key heads"),
        ({"head_dim": 7}, "heads are 7 wide"),
        ({"rope_parameters": {"rope_theta": 10.0}}, "rope_theta is 1000.0, and 10.0 inside rope_parameters"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope scaling"),
        ({"block_size": 1}, "block_size is 1"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers, num_hidden_layers says 2"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "architectures.*DFlashDraftModel, DFlash2DraftModel"),
        ({"architectures": None}, "architectures is None"),
    ],
)
def test_declarations_that_do_not_fit(lm, tmp_path, second, fields, said):
    arrays = dflash_arrays(dflash_config(lm.config, second))
    path = write_dflash(tmp_path / "d", dflash_config(lm.config, second, **fields), arrays)
    with pytest.raises(TurbosparkError, match=said):
        raise TurbosparkError("blocked", reason(lm, path))


def test_a_conflict_between_flat_and_nested_is_refused_by_name(lm, tmp_path):
    config = {**dflash_config(lm.config), "block_size": 4}
    path = write_dflash(tmp_path / "d", config, dflash_arrays(config))
    assert "block_size is 4, and 8 inside dflash_config" in reason(lm, path)


def test_flat_declarations_are_as_good_as_nested_ones(lm, tmp_path):
    config = dflash_config(lm.config)
    path = write_dflash(
        tmp_path / "d", {**config, **config["dflash_config"], "dflash_config": None}, dflash_arrays(config)
    )
    assert reason(lm, path) is None


def test_every_reason_is_told_at_once(lm, tmp_path):
    config = dflash_config(lm.config, hidden_size=48, vocab_size=12)
    told = reason(lm, write_dflash(tmp_path / "d", config))
    assert "48" in told
    assert "12" in told


def test_layer_numbers_of_a_gguf_are_plus_one(lm, tmp_path):
    config = dflash_config(lm.config)
    path = write_dflash_gguf(tmp_path / "d.gguf", config, **{"dflash.target_layers": [1, 3]})
    assert "reads layer 2" in reason(lm, path)
    path = write_dflash_gguf(tmp_path / "e.gguf", config, **{"dflash.target_layers": [0, 2]})
    assert "plus one" in reason(lm, path)


@pytest.mark.parametrize(
    "key", ["target_layers", "block_size", "attention.head_count", "embedding_length", "selector_top_k"]
)
def test_a_missing_key_of_a_gguf_is_named(lm, tmp_path, key):
    config = dflash_config(lm.config)
    metadata = {k: v for k, v in gguf_metadata(config).items() if k != f"dflash.{key}"}
    complete = opened(write_dflash_gguf(tmp_path / "d.gguf", config), lm.config).checkpoint
    arrays = {
        name: complete.open(name).data.view(np.float32).reshape(complete.tensors[name].shape)
        for name in complete.tensors
    }
    assert f"dflash.{key}" in reason(lm, write_gguf(tmp_path / "cut.gguf", metadata, arrays))


NAMES = list(
    dflash_arrays(dflash_config(turbospark.config.model.ModelConfig("llama", 32, VOCAB, 64, 1e-6, (0, 0), True)))
)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_that_is_missing_renamed_or_of_another_shape_is_named(lm, tmp_path, name):
    config = dflash_config(lm.config)
    arrays = dflash_arrays(config)
    without = {n: a for n, a in arrays.items() if n != name}
    if name != "fc.weight":  # it tells that this is a drafter at all
        assert name in reason(lm, write_dflash(tmp_path / "missing", config, without))
        renamed = {**without, f"{name}.weight" if "codebook" in name else f"x.{name}": arrays[name]}
        assert name in reason(lm, write_dflash(tmp_path / "renamed", config, renamed))
    wider = np.concatenate([arrays[name], arrays[name][:1]])
    told = reason(lm, write_dflash(tmp_path / "wider", config, {**arrays, name: wider}))
    assert name in told
    assert str([*arrays[name].shape]) in told
    assert str([*wider.shape]) in told


def test_a_tensor_nothing_uses_is_named(lm, tmp_path):
    config = dflash_config(lm.config)
    sinks = {**dflash_arrays(config), "layers.0.self_attn.sinks": np.ones(4, np.float32)}
    assert "layers.0.self_attn.sinks" in reason(lm, write_dflash(tmp_path / "d", config, sinks))


@pytest.mark.parametrize("fields", [{"selector_rank": 7}, {"target_layer_ids": [1]}, {"conv_kernel_size": 3}])
def test_numbers_other_than_the_tensors_have_are_refused_with_both_shapes(lm, tmp_path, fields):
    arrays = dflash_arrays(dflash_config(lm.config))
    assert "has shape" in reason(lm, write_dflash(tmp_path / "d", dflash_config(lm.config, **fields), arrays))


@pytest.mark.parametrize(
    "fields", [{"selector_rank": 1}, {"selector_rank": 9}, {"selector_top_k": 1}, {"selector_top_k": 11}]
)
def test_other_ranks_and_candidate_counts_are_served(lm, tmp_path, fields):
    assert reason(lm, write_dflash(tmp_path / "d", dflash_config(lm.config, **fields))) is None


def test_more_candidates_than_tokens_are_refused_with_both(lm, tmp_path):
    told = reason(lm, write_dflash(tmp_path / "d", dflash_config(lm.config, selector_top_k=12)))
    assert "12 candidates, its vocabulary is 11" in told


@pytest.mark.parametrize(
    ("offsets", "mask", "said"),
    [
        ([0, 1, 9], None, "leads to id 11, the vocabulary is 11"),
        ([0, -3, 0], None, "leads to id -2"),
        ([2, 0, 0], None, "do not ascend"),
        ([0, 1, 2], [0, 1, 4], "t2d names 3 ids.*leads to 3"),
        ([0, 1, 2], [0, 2, 4, 5], "t2d names 4 ids.*leads to 3"),
        ([0, 1], None, "draft_vocab_size is 3, tensor d2t has 2"),
        (None, None, "reduced to 3 of 11; tensor d2t is missing"),
    ],
)
def test_reduced_vocabularies_that_lead_nowhere(lm, tmp_path, offsets, mask, said):
    config = dflash_config(lm.config, draft_vocab_size=3)
    arrays = dflash_arrays(config)
    if offsets is not None:
        arrays["d2t"] = np.array(offsets)
    if mask is not None:
        arrays["t2d"] = np.isin(np.arange(VOCAB), mask)
    with pytest.raises(TurbosparkError, match=said):
        raise TurbosparkError("blocked", reason(lm, write_dflash(tmp_path / "d", config, arrays)))


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (torch.ones(31), r"has shape \[31\], the drafter's hidden size is 32"),
        ({"mask_token_id": 5, "embedding": torch.ones(32)}, "mask_token_id 5, the config says 0"),
        ({"vector": torch.ones(32)}, "neither a tensor nor"),
    ],
)
def test_mask_embeddings_that_do_not_fit(lm, tmp_path, stored, said):
    path = write_dflash(tmp_path / "d", dflash_config(lm.config))
    torch.save(stored, path / "mask_embedding.pt")
    with pytest.raises(TurbosparkError, match=said):
        raise TurbosparkError("blocked", reason(lm, path))


def test_values_that_overflow_are_refused_by_name(lm, tmp_path):
    """A row that is not a number would make token 0 the best of every row."""
    from tests.tiny.oracle import params, run
    from turbospark.draft.load import load_drafter
    from turbospark.engine.loop import Engine

    config = dflash_config(lm.config)
    arrays = dflash_arrays(config)
    arrays["norm.weight"] = arrays["norm.weight"] * np.float32(np.nan)
    model = lm.engine.model
    drafter = load_drafter(write_dflash(tmp_path / "d", config, arrays), model, lm.checkpoint, 1, 32)
    engine = Engine(model, 1, 32, drafter)
    with pytest.raises(TurbosparkError, match=r"drafter's row 0 of 7 is not finite"):
        run(engine, engine.submit([1, 2], params(model, max_new=9, speculative=7)))
