"""The names of a DFlash drafter's tensors: those of its Hugging Face checkpoint, and what other files call them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

PREFIX = "dflash."  # of tensors inside the target's own file
SHARED_PREFIXES = ("", "model.")  # of a checkpoint of its own
MUSE = {"fc": "encoder.fc", "hidden_norm": "encoder.output_norm_enc"}
GGUF_TOP = {
    "hidden_norm": "enc.output_norm",
    "norm": "output_norm",
    "candidate_selector.predecessor_codebook": "selector_predecessor",
    "candidate_selector.successor_codebook": "selector_successor",
    "candidate_selector.hidden_projection": "selector_hidden",
}
GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "attention_conv.base_kernel": "attn_conv_base",
    "attention_conv.kernel_projection": "attn_conv_proj",
    "mlp_conv.base_kernel": "ffn_conv_base",
    "mlp_conv.kernel_projection": "ffn_conv_proj",
}
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")


def locator(kind: str, prefix: str = "") -> Callable[[str], Iterable[str]]:
    """A tensor's Hugging Face name -> the names that a file of this kind ("gguf" or "hf") may use for it."""
    return lambda name: [prefix + found for found in (_gguf if kind == "gguf" else _hf)(name)]


def _hf(name: str) -> list[str]:
    stem = name.removesuffix(".weight")
    end = name[len(stem) :]
    stems = [stem, *([MUSE[stem]] if stem in MUSE else [])]
    return [prefix + found + end for found in stems for prefix in SHARED_PREFIXES]


def _gguf(name: str) -> list[str]:
    """With and without the ending, which bare parameters lack in one file and have in another."""
    stem = name.removesuffix(".weight")
    layer = _LAYER.fullmatch(stem)
    found = f"blk.{layer[1]}.{GGUF_LAYER.get(layer[2], layer[2])}" if layer else GGUF_TOP.get(stem, stem)
    return [found + ".weight", found, name]
