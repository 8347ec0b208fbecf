"""Tensor names: GGUF's are the canonical ones, an HF checkpoint's are found from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

HF_TOP = {"token_embd": "embed_tokens", "output_norm": "norm"}
HF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_up_exps": "mlp.experts.gate_up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}
# what installs with names of their own call otherwise than HF
INSTALL_LAYER = {
    "attn_kv_a_mqa": "self_attn.kv_a_proj",
    "attn_kv_a_norm": "self_attn.kv_a_norm",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
}
HF_PREFIXES = ("model.", "model.language_model.", "language_model.model.", "")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+?)(\.weight|\.bias|)")
_EXPERT = re.compile(r"ffn_(gate|up|down)_exps\.(\d+)")


def locator(kind: str, family: Mapping[str, str]) -> Callable[[str], Iterable[str]]:
    """canonical name -> the names a file of this kind ("gguf", "hf" or "install") may use, most likely first."""
    if kind == "gguf":
        return lambda name: (name,)
    layer = {**HF_LAYER, **family, **(INSTALL_LAYER if kind == "install" else {})}

    def hf(name: str) -> Iterable[str]:
        stem, dot, suffix = name.rpartition(".")
        block = _BLOCK.fullmatch(name)
        if name == "output.weight":
            return ("lm_head.weight", "language_model.lm_head.weight")
        if block is None:
            return [prefix + HF_TOP.get(stem, stem) + dot + suffix for prefix in HF_PREFIXES]
        index, part, end = block.groups()
        expert = _EXPERT.fullmatch(part)
        inner = f"mlp.experts.{expert[2]}.{expert[1]}_proj" if expert else layer.get(part, part)
        # a family may name a tensor with its ending, where the HF one ends otherwise
        inner = layer.get(part + end, inner + end)
        return [f"{prefix}layers.{index}.{inner}" for prefix in HF_PREFIXES]

    return hf
