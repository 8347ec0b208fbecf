"""The published DFlash2 drafter of the 27B trunk, for installs that hold it and do not say what it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turbospark.draft import dflash_config
from turbospark.draft.dflash_config import DFlashConfig
from turbospark.errors import TurbosparkError

# config.json of Qwen3.8-27B-DFlash2
CONFIG = {
    "architectures": ["DFlash2DraftModel"],
    "hidden_size": 5120,
    "vocab_size": 248320,
    "num_hidden_layers": 5,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 17408,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "layer_types": ["sliding_attention"] * 5,
    "sliding_window": 2048,
    "use_sliding_window": True,
    "is_causal": False,
    "num_target_layers": 64,
    "dflash_config": {
        "block_size": 8,
        "mask_token_id": 248070,
        "target_layer_ids": [5, 19, 33, 47, 61],
        "conv_kernel_size": 2,
        "conv_group_size": 16,
        "selector_rank": 256,
        "selector_top_k": 16,
    },
}


def of_trunk(arch: Mapping[str, Any], where: str) -> DFlashConfig:
    """The drafter's declarations, if the trunk has its sizes (`missing_key` otherwise: nothing is guessed)."""
    ours, theirs = (CONFIG["hidden_size"], CONFIG["vocab_size"]), (arch.get("hiddenSize"), arch.get("vocabSize"))
    if ours != theirs:
        known = f"the one that is known has hidden size and vocabulary {ours}, this model has {theirs}"
        raise TurbosparkError("missing_key", f"{where}: the manifest has no drafter block; {known}")
    return dflash_config.from_hf(CONFIG, where)
