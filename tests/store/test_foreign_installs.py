"""Installs that another system wrote: its names, its keys, its constants; logits equal to the same weights' folder."""

from __future__ import annotations

import numpy as np
import pytest

import turbospark
from tests.draft.test_load import proposals
from tests.store.sources import IDS
from tests.tiny import deepseek2, hf, llama, mtp, qwen3_5
from tests.tiny.install_file import write_install
from tests.tiny.safetensors_file import write_hf_folder
from tests.tiny.tokenizers import write_tokenizer_json
from turbospark import quant
from turbospark.config.registry import read_config
from turbospark.draft.find import Found, declared
from turbospark.draft.load import load_drafter
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.store.repack import import_model
from turbospark.store.verify import verify

PREFIX = "language_model."
FLAGS = {
    "tieWordEmbeddings": False,
    "attentionKEqV": False,
    "hiddenActivation": "silu",
    "embeddingScaledBySqrtHidden": False,
    "routerScaled": False,
    "routerScoringFunc": "softmax",
    "ffnSandwichNorms": False,
    "sharedExpertGated": False,
    "attnOutputGate": False,
    "linearOutputGateSigmoid": False,
    "swigluLimit": 0.0,
    "finalLogitSoftcap": 0.0,
    "slidingWindow": 0,
    "numDenseLeadingLayers": 0,
    "numExperts": 0,
    "topKExperts": 0,
    "moeIntermediateSize": 0,
    "ropeScalingFactor": 0.0,
}


def common(config, mask):
    return {
        **FLAGS,
        "hiddenSize": config.hidden_size,
        "numLayers": config.num_hidden_layers,
        "numHeads": config.num_attention_heads,
        "numKVHeads": config.num_key_value_heads,
        "numFullKVHeads": config.num_key_value_heads,
        "headDim": config.head_dim,
        "fullHeadDim": config.head_dim,
        "vocabSize": config.vocab_size,
        "attentionScale": config.head_dim**-0.5,
        "ropeTheta": 1000.0,
        "fullRopeTheta": 1000.0,
        "fullAttentionLayerMask": mask,
    }


def llama_parts():
    model = llama.tiny_llama(rms_norm_eps=1e-5)
    config = model.config
    arch = common(config, [1] * config.num_hidden_layers)
    arch |= {"family": "llama", "ffnIntermediate": config.intermediate_size, "partialRotaryFactor": 1.0}
    return model, arch, hf.arrays(model), []


def qwen_parts(moe, **fields):
    """Norms are kept as what they multiply by; experts and all else as in a folder."""
    model = qwen3_5.hf_model(moe, **fields)
    config = model.config
    arch = common(config, [2, 1, 2, 1])
    arch |= {
        "family": "qwen36" if moe else "qwen35",
        "attnOutputGate": True,
        "ropeNeoxSubdim": True,
        "partialRotaryFactor": 0.5,
        "linearNumKHeads": config.linear_num_key_heads,
        "linearNumVHeads": config.linear_num_value_heads,
        "linearKeyHeadDim": config.linear_key_head_dim,
        "linearValueHeadDim": config.linear_value_head_dim,
        "linearConvKernelSize": config.linear_conv_kernel_dim,
        "ffnIntermediate": config.shared_expert_intermediate_size if moe else config.intermediate_size,
    }
    if moe:
        arch |= {
            "numExperts": config.num_experts,
            "topKExperts": config.num_experts_per_tok,
            "moeIntermediateSize": config.moe_intermediate_size,
            "sharedExpertGated": True,
        }
    arrays, layers = {}, []
    for name, values in hf.arrays(model).items():
        if name.endswith("gate_up_proj"):
            gate, up = np.split(values, 2, axis=1)
            layers.append([{"gate": ("F32", g), "up": ("F32", u)} for g, u in zip(gate, up, strict=True)])
        elif name.endswith("experts.down_proj"):
            for expert, down in zip(layers[-1], values, strict=True):
                expert["down"] = ("F32", down)
        else:
            arrays[name] = 1 + values if name.endswith(qwen3_5.OFFSET_NORMS) else values
    return model, arch, arrays, layers


def folder_of(tmp_path, parts):
    return hf.write(tmp_path / "folder", parts[0])


def install_of(tmp_path, parts, **fields):
    _, arch, arrays, layers = parts
    named = {PREFIX + name: ("F32", values) for name, values in arrays.items()}
    return write_install(tmp_path / "foreign.gturbo", arch, named, layers, **fields)


PARTS = {"llama": llama_parts, "qwen35": lambda: qwen_parts(False), "qwen36": lambda: qwen_parts(True)}


@pytest.mark.parametrize("family", PARTS)
def test_logits_are_those_of_the_same_weights_in_a_folder(tmp_path, family):
    parts = PARTS[family]()
    install = install_of(tmp_path, parts)
    theirs, ours = (turbospark.load(p, "reference").logits(IDS) for p in (folder_of(tmp_path, parts), install))
    # a norm stored as 1 + w has other last bits than w + 1 made from w
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    assert verify(install) == []


def test_a_deepseek_install_has_names_of_its_own_and_an_offset_for_its_dense_lead(tmp_path):
    config = {**deepseek2.V2, "vocab_size": 96}
    arrays = deepseek2.weights(config)
    renamed = {
        ".kv_a_proj_with_mqa.": ".kv_a_proj.",
        ".kv_a_layernorm.": ".kv_a_norm.",
        ".shared_experts.": ".shared_expert.",
    }
    named, experts = {}, {}
    for name, values in arrays.items():
        if ".experts." in name:
            _, _, layer, _, _, e, role, _ = name.split(".")
            one = experts.setdefault(int(layer), {}).setdefault(int(e), {})
            one[role.removesuffix("_proj")] = ("F32", values)
            continue
        for old, new in renamed.items():
            name = name.replace(old, new)
        named[PREFIX + name] = ("F32", values)
    layers = [[experts[layer][e] for e in sorted(experts[layer])] for layer in sorted(experts)]
    factor, mscale = 40.0, 0.707
    arch = {
        **FLAGS,
        "family": "deepseek2",
        "hiddenSize": 32,
        "numLayers": 3,
        "numHeads": 4,
        "numKVHeads": 1,
        "headDim": 20,
        "fullHeadDim": 20,
        "vocabSize": 96,
        "ffnIntermediate": 48,
        "denseLeadIntermediateSize": 56,
        "numDenseLeadingLayers": 1,
        "numExperts": 8,
        "topKExperts": 3,
        "moeIntermediateSize": 24,
        "mlaKvLoraRank": 24,
        "mlaQLoraRank": 0,
        "mlaNopeHeadDim": 12,
        "mlaRopeHeadDim": 8,
        "mlaVHeadDim": 20,
        "ropeTheta": 10000.0,
        "ropeNeoxSubdim": True,
        "ropeScalingFactor": factor,
        "ropeScalingOriginalContext": 16,
        "ropeScalingBetaFast": 32.0,
        "ropeScalingBetaSlow": 1.0,
        "ropeScalingMscale": mscale,
        "attentionScale": (1 + 0.1 * mscale * np.log(factor)) ** 2 / 20**0.5,
        "fullAttentionLayerMask": [5, 5, 5],
    }
    install = write_install(tmp_path / "foreign.gturbo", arch, named, layers)
    folder = deepseek2.write_hf(tmp_path / "folder", config, arrays)
    theirs, ours = (turbospark.load(path, "reference").logits(IDS) for path in (folder, install))
    np.testing.assert_array_equal(ours, theirs)
    assert turbospark.load(install, "reference").config.context == 640
    wrong = {**arch, "numDenseLeadingLayers": 0}
    with pytest.raises(TurbosparkError, match=r"layers\.0\.mlp|missing"):
        turbospark.load(write_install(tmp_path / "wrong.gturbo", wrong, named, layers), "reference")


def test_affine_weights_and_experts_are_read_with_their_companions(tmp_path):
    wide = {"hidden_size": 128, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64}
    _, arch, arrays, layers = qwen_parts(True, **wide)
    rounded = lambda a, format: quant.decode(quant.encode(a, format))
    named, plain = {}, {}
    for name, values in arrays.items():
        matrix = values.ndim == 2 and values.shape[1] % 64 == 0
        format = "INT8" if name.endswith("mlp.gate.weight") else "INT4" if matrix else "F32"
        named[PREFIX + name] = (format, values)
        plain[PREFIX + name] = ("F32", rounded(values, format))
    packed = [[{role: ("INT4", a) for role, (_, a) in e.items()} for e in layer] for layer in layers]
    opened = [[{role: ("F32", rounded(a, "INT4")) for role, (_, a) in e.items()} for e in layer] for layer in layers]
    install = write_install(tmp_path / "affine.gturbo", arch, named, packed)
    expected = write_install(tmp_path / "plain.gturbo", arch, plain, opened)
    theirs, ours = (turbospark.load(path, "reference").logits(IDS) for path in (expected, install))
    np.testing.assert_array_equal(ours, theirs)
    assert verify(install) == []


def test_norms_narrowed_to_bf16_and_their_axes_of_one_are_read(tmp_path):
    _, arch, arrays, layers = llama_parts()
    named = {PREFIX + n: ("BF16" if "norm" in n else "F32", a) for n, a in arrays.items()}
    install = write_install(tmp_path / "foreign.gturbo", arch, named, layers)
    assert np.isfinite(turbospark.load(install, "reference").logits(IDS)).all()


def test_the_tokenizer_and_settings_lie_beside_unlisted(tmp_path):
    install = install_of(tmp_path, llama_parts(), texts={"generation_config.json": {"temperature": 0.3}})
    write_tokenizer_json(install)
    model = turbospark.load(install, "reference", 64)
    assert model.tokenizer is not None
    assert model.tokenizer.has_chat_template
    assert verify(install) == []


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"family": None}, "unsupported_family", ["gemma4"]),
        ({"family": "gpt-oss"}, "unsupported_family", ["gpt-oss", "qwen36"]),
        ({"hiddenActivation": None}, "unsupported_feature", ["hiddenActivation", "gelu"]),
        ({"ffnSandwichNorms": None}, "unsupported_feature", ["ffnSandwichNorms"]),
        ({"attnOutputGate": True}, "unsupported_feature", ["attnOutputGate"]),
        ({"hiddenSize": None}, "missing_key", ["hiddenSize"]),
        ({"hiddenSize": 40}, "shape_mismatch", ["40", "48"]),
        ({"numKVHeads": 3, "numFullKVHeads": None}, "bad_config", ["4", "3"]),
        ({"fullAttentionLayerMask": [1, 1]}, "bad_config", ["fullAttentionLayerMask", "3"]),
        ({"fullAttentionLayerMask": [1, 1, 4]}, "bad_config", ["fullAttentionLayerMask"]),
        ({"partialRotaryFactor": 0.01}, "bad_config", ["0 of a head's 16"]),
        ({"numExperts": 8, "topKExperts": 2, "moeIntermediateSize": 8}, "bad_config", ["numExperts"]),
        ({"ropeScalingFactor": 8.0}, "unsupported_feature", ["ropeScalingFactor"]),
        ({"swigluLimit": 7.0}, "unsupported_feature", ["swigluLimit", "7.0"]),
    ],
)
def test_what_such_an_install_asks_for_and_we_do_not_do_is_refused_by_name(tmp_path, change, code, words):
    model, arch, arrays, layers = llama_parts()
    arch = {name: value for name, value in {**arch, **change}.items() if value is not None}
    install = install_of(tmp_path, (model, arch, arrays, layers))
    with pytest.raises(TurbosparkError) as caught:
        turbospark.load(install, "reference")
    assert caught.value.code == code
    assert all(word in caught.value.message for word in words), caught.value.message


@pytest.mark.parametrize(("told", "context"), [(64, 64), (10**30, 8192), (None, 8192)])
def test_the_context_is_the_tokenizers_where_the_rotation_does_not_tell(tmp_path, told, context):
    texts = {} if told is None else {"tokenizer_config.json": {"model_max_length": told}}
    install = install_of(tmp_path, llama_parts(), texts=texts)
    assert read_config(open_checkpoint(install)).context == context


def test_such_an_install_is_no_source_of_another(tmp_path):
    with pytest.raises(TurbosparkError) as caught:
        import_model(install_of(tmp_path, llama_parts()), "copy")
    assert caught.value.code == "unsupported_source"


def test_a_drafter_it_says_nothing_of_is_the_published_one_where_the_sizes_are_its_own(tmp_path):
    fuse = {"dflash.fc.weight": ("F32", np.ones((2, 4)))}
    sizes = {"hiddenSize": 5120, "vocabSize": 248320}
    right = open_checkpoint(write_install(tmp_path / "right.gturbo", sizes, fuse))
    config = declared(Found("dflash", right, "dflash."))
    assert (config.block, config.mask_id, config.taps) == (8, 248070, (5, 19, 33, 47, 61))
    assert (config.selector.rank, config.selector.top_k, config.conv_taps, config.conv_group) == (256, 16, 2, 16)
    assert {(layer.window, layer.causal) for layer in config.layers} == {(2048, False)}
    other = open_checkpoint(write_install(tmp_path / "other.gturbo", {**sizes, "hiddenSize": 4096}, fuse))
    with pytest.raises(TurbosparkError) as caught:
        declared(Found("dflash", other, "dflash."))
    assert caught.value.code == "missing_key"
    assert "(5120, 248320), this model has (4096, 248320)" in caught.value.message


def test_an_mtp_head_in_it_is_found_and_its_norms_are_factors(tmp_path):
    model, arch, arrays, layers = qwen_parts(False)
    head = mtp.qwen_mtp(model.config)
    folder = write_hf_folder(
        tmp_path / "folder", {**model.config.to_dict(), "mtp_num_hidden_layers": 1}, {**hf.arrays(model), **head}
    )
    raised = {name: 1 + values if values.ndim == 1 else values for name, values in head.items()}
    named = {PREFIX + name: ("F32", values) for name, values in arrays.items()}
    named |= {name: ("F32", values) for name, values in raised.items()}
    install = write_install(tmp_path / "foreign.gturbo", arch, named, layers)
    told = []
    for path in (folder, install):
        lm = turbospark.load(path, "reference", 128)
        told.append(proposals(lm, load_drafter("mtp", lm.engine.model, lm.checkpoint, 2, 32)))
    assert told[0] == told[1]
    assert any(any(round) for round in told[0])
