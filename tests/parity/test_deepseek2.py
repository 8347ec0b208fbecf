"""deepseek2 against transformers and llama.cpp, on tiny models whose every tensor is seen in the logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

import turbospark
from tests.parity.harness import (
    BACKENDS,
    check_groupings,
    check_sees_noise,
    difference,
    feed,
    new_session,
    some_ids,
    with_noise,
)
from tests.parity.llama_cpp import LlamaCpp, log_softmax, vocabulary
from tests.tiny.deepseek2 import (
    GROUPED,
    V2,
    V3,
    YARN,
    Weights,
    metadata,
    tensors,
    weights,
    write_deepseek2_gguf,
    write_hf,
)
from tests.tiny.gguf_file import write_gguf
from tests.tiny.memory import Memory
from turbospark.config import deepseek2
from turbospark.config.keys import Keys
from turbospark.errors import TurbosparkError
from turbospark.kernels.reference import ReferenceKernels
from turbospark.models.base import Model
from turbospark.models.registry import model_class
from turbospark.quant.formats import decode, encode
from turbospark.quant.fp8 import with_scales
from turbospark.quant.tensor import QTensor

VOCAB, CONTEXT, LIMIT = 96, 160, 1e-4
GLM = {**V3, "model_type": "glm4_moe_lite", "n_group": 1, "topk_group": 1, "rope_scaling": None, "rms_norm_eps": 0.1}
VARIANTS = {
    "v2": V2,
    "v2 with q rank": {**V2, "q_lora_rank": 28},
    "v2 with a magnitude": {**V2, "rope_scaling": {**YARN, "mscale": 1.0}},
    "v2 with an outright magnitude": {**V2, "rope_scaling": {**YARN, "attention_factor": 1.2}},
    "v2 with mscale_all_dim alone": {**V2, "rope_scaling": {**YARN, "mscale": None}},
    "v2 by groups": {**V2, **GROUPED},
    "v2 by groups with q rank": {**V2, **GROUPED, "q_lora_rank": 28},
    "v3": V3,
    "v3 without q rank": {**V3, "q_lora_rank": None},
    "v3 with rotation in halves": {**V3, "rope_interleave": False},
    "v3 without yarn": {**V3, "rope_scaling": None, "norm_topk_prob": False},
    "glm": GLM,
}
Logits = Callable[[list[int]], np.ndarray]


def transformers_logits(folder: Path) -> Logits:
    """An HF folder as transformers runs it, in float32: ids -> [T, vocab]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    def logits(ids: list[int]) -> np.ndarray:
        with torch.no_grad():
            return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()

    return logits


def our_logits(path: Path, backend: str = "reference", exact: bool = False) -> Logits:
    return turbospark.load(path, backend, CONTEXT, exact=exact).logits


def in_memory(config: Mapping[str, Any], made: Weights) -> Model:
    return model_class("deepseek2")(
        deepseek2.from_hf(Keys(config, "tiny")), Memory(made), "hf", ReferenceKernels(), CONTEXT
    )


@pytest.mark.parametrize("name", VARIANTS)
@BACKENDS
def test_logits_are_those_of_transformers(name, backend, tmp_path):
    folder = write_hf(tmp_path / "hf", VARIANTS[name], weights(VARIANTS[name]))
    ours, theirs = our_logits(folder, **backend), transformers_logits(folder)
    for length in (1, 2, 3, 16, 17, 51, 130):
        ids = some_ids(length, VOCAB, seed=length)
        assert difference(ours(ids), theirs(ids)) < LIMIT, f"{length} tokens"


@pytest.mark.parametrize("config", [{**V2, **GROUPED}, V3], ids=["v2", "v3"])
def test_noise_on_any_tensor_is_seen(config):
    made, ids = weights(config), some_ids(100, VOCAB)

    def logits(changed: Weights) -> np.ndarray:
        model = in_memory(config, changed)
        return feed(model, new_session(model, 1), [(0, ids)])

    check_sees_noise(list(made), lambda name: logits({**made, name: with_noise(made[name])}), logits(made))


@pytest.mark.parametrize("config", [V2, V3], ids=["v2", "v3"])
def test_logits_do_not_depend_on_the_grouping(config):
    config = {**config, "num_hidden_layers": 2}
    check_groupings(in_memory(config, weights(config)))


@pytest.mark.parametrize("kv_b", ["joint", "split", "both", "flat"])
@pytest.mark.parametrize("name", ["v2", "v2 by groups with q rank", "v3"])
def test_a_gguf_gives_the_logits_of_the_folder(name, kv_b, tmp_path):
    config, ids = VARIANTS[name], some_ids(70, VOCAB)
    made = weights(config)
    theirs = our_logits(write_hf(tmp_path / "hf", config, made))(ids)
    for old_keys in (False, True):
        path = write_deepseek2_gguf(tmp_path / f"{old_keys}.gguf", config, made, kv_b, old_keys)
        assert difference(our_logits(path)(ids), theirs) < LIMIT


# llama.cpp has a model without q rank at 26 and 27 layers only, takes all three forms of kv_b for a surplus, and
# ranks V2's groups as V3's
@pytest.mark.parametrize(("kv_b", "old_keys"), [("split", False), ("joint", True)])
@pytest.mark.parametrize(
    "config",
    [
        {**V2, "num_hidden_layers": 27, "routed_scaling_factor": 1.7, "norm_topk_prob": True},
        {**V3, "num_hidden_layers": 4},
    ],
    ids=["v2", "v3"],
)
def test_log_probabilities_are_those_of_llama_cpp(config, kv_b, old_keys, tmp_path):
    path = write_deepseek2_gguf(tmp_path / "tiny.gguf", config, weights(config), kv_b, old_keys, **vocabulary(VOCAB))
    ids, model = some_ids(60, VOCAB), turbospark.load(path, "reference", CONTEXT)
    ours, theirs = log_softmax(model.logits(ids)), LlamaCpp(path)
    for length in (1, 2, 23, 60):
        assert difference(ours[length - 1], theirs.logprobs(ids[:length], VOCAB)) < LIMIT, f"{length} tokens"


@pytest.mark.parametrize("name", ["v2 by groups", "v3", "glm"])
def test_a_folder_that_transformers_saved_loads(name, tmp_path):
    folder = write_hf(tmp_path / "hf", VARIANTS[name], weights(VARIANTS[name]))
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).save_pretrained(tmp_path / "saved")
    ids = some_ids(40, VOCAB)
    assert difference(our_logits(tmp_path / "saved")(ids), our_logits(folder)(ids)) < LIMIT


def test_experts_stacked_as_transformers_holds_them_load(tmp_path):
    folder = write_hf(tmp_path / "hf", V3, weights(V3))
    held = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    arrays = {name: value.numpy() for name, value in held.state_dict().items()}
    assert "model.layers.1.mlp.experts.gate_up_proj" in arrays
    config = AutoConfig.from_pretrained(folder).to_dict()
    ids = some_ids(40, VOCAB)
    assert difference(our_logits(write_hf(tmp_path / "held", config, arrays))(ids), our_logits(folder)(ids)) < LIMIT


def test_shards_and_one_file_give_the_same_bits(tmp_path):
    made, ids = weights(V2), some_ids(20, VOCAB)
    one, three = (our_logits(write_hf(tmp_path / f"{n}", V2, made, shards=n))(ids) for n in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_kv_b_in_a_block_format_is_read_transposed(tmp_path):
    config, ids = {**V2, "kv_lora_rank": 32}, some_ids(40, VOCAB)
    named = tensors(config, weights(config), "joint")
    packed = {name: encode(values, "Q8_0") for name, values in named.items() if "attn_kv_b" in name}
    plain = write_gguf(tmp_path / "plain", metadata(config), named | {k: decode(t) for k, t in packed.items()})
    coded = {name: ("Q8_0", t.data, t.shape) for name, t in packed.items()}
    folded = write_gguf(tmp_path / "packed", metadata(config), named | coded)
    assert difference(our_logits(folded)(ids), our_logits(plain)(ids)) < 1e-6


@pytest.mark.parametrize("block", [(16, 16), (128, 128)])
def test_fp8_blocks_give_the_logits_of_their_decoded_values(block, tmp_path):
    made, ids = weights(V3), some_ids(60, VOCAB)
    packed, plain = {}, {}
    for name, values in made.items():
        if "proj" not in name:
            packed[name] = plain[name] = values
            continue
        codes, scales = to_fp8(values, block)
        packed |= {name: codes, name + "_scale_inv": scales}
        tensor = QTensor(name, "F8_E4M3", values.shape, codes.view(np.uint8))
        plain[name] = decode(with_scales(tensor, QTensor("", "F32", scales.shape, scales.view(np.uint8)), block))
    declared = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": list(block)}
    folder = write_hf(tmp_path / "fp8", {**V3, "quantization_config": declared}, packed)
    theirs = transformers_logits(write_hf(tmp_path / "plain", V3, plain))
    assert difference(our_logits(folder)(ids), theirs(ids)) < LIMIT


def to_fp8(values: np.ndarray, block: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Codes, and one scale for each block of rows and columns, partial ones at the edges included."""
    scales = np.empty([-(-n // b) for n, b in zip(values.shape, block, strict=True)], np.float32)
    codes = np.empty(values.shape, ml_dtypes.float8_e4m3fn)
    for i, j in np.ndindex(*scales.shape):
        part = np.s_[i * block[0] : (i + 1) * block[0], j * block[1] : (j + 1) * block[1]]
        scales[i, j] = np.abs(values[part]).max() / 448
        codes[part] = (values[part] / scales[i, j]).astype(ml_dtypes.float8_e4m3fn)
    return codes, scales


def test_mtp_layers_are_left_alone(tmp_path):
    made, ids = weights(V3), some_ids(20, VOCAB)
    last = {name.replace("layers.2.", "layers.3."): values for name, values in made.items() if ".layers.2." in name}
    extra = {
        **made,
        **last,
        "model.layers.3.eh_proj.weight": np.ones((32, 64), np.float32),
        "model.layers.3.shared_head.head.weight": made["lm_head.weight"],
    }
    folder = write_hf(tmp_path / "mtp", {**V3, "num_nextn_predict_layers": 1}, extra)
    np.testing.assert_array_equal(our_logits(folder)(ids), our_logits(write_hf(tmp_path / "hf", V3, made))(ids))
    with pytest.raises(TurbosparkError, match=r"model\.layers\.3\."):
        our_logits(write_hf(tmp_path / "undeclared", V3, extra))


def test_mtp_layers_of_a_gguf_count_as_blocks_and_are_left_alone(tmp_path):
    named, ids = tensors(V3, weights(V3)), some_ids(20, VOCAB)
    plain = write_gguf(tmp_path / "plain", metadata(V3), named)
    extra = named | {"blk.3.nextn.eh_proj.weight": np.ones((32, 64), np.float32)}
    declared = metadata(V3) | {"deepseek2.block_count": 4, "deepseek2.nextn_predict_layers": 1}
    with_mtp = write_gguf(tmp_path / "mtp", declared, extra)
    np.testing.assert_array_equal(our_logits(with_mtp)(ids), our_logits(plain)(ids))


def test_kimi_k2_declares_the_same_model():
    assert deepseek2.from_hf(Keys({**V3, "model_type": "kimi_k2"}, "")) == deepseek2.from_hf(Keys(V3, ""))
