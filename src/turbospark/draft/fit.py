"""Whether a DFlash drafter's declarations fit a trunk, and each other."""

from __future__ import annotations

from collections.abc import Iterator

from turbospark.config.model import ModelConfig
from turbospark.draft.dflash_config import DFlashConfig


def misfits(drafter: DFlashConfig, trunk: ModelConfig, own_mask: bool = False) -> Iterator[str]:
    """Every reason why not, with both numbers. own_mask: the drafter brings an embedding for its mask rows."""
    d, layers = drafter, len(trunk.layers)
    if d.hidden != trunk.hidden:
        yield f"the drafter's hidden size is {d.hidden}, the model's is {trunk.hidden}"
    if d.vocab != trunk.vocab:
        yield f"the drafter's vocabulary is {d.vocab}, the model's is {trunk.vocab}"
    if d.target_layers is not None and d.target_layers != layers:
        yield f"the drafter was made for a model of {d.target_layers} layers, this one has {layers}"
    outside = [tap for tap in d.taps if not 0 <= tap < layers]
    if outside:
        yield f"the drafter reads layer {outside[0]} (target_layer_ids), the model's layers are 0 to {layers - 1}"
    if len(set(d.taps)) < len(d.taps):
        yield f"the drafter reads a layer twice (target_layer_ids {list(d.taps)})"
    if d.mask_id >= trunk.vocab and not own_mask:
        yield f"the drafter's mask_token_id is {d.mask_id}, outside the model's vocabulary of {trunk.vocab}"
    if d.heads % d.kv_heads:
        yield f"the drafter's {d.heads} heads cannot share {d.kv_heads} key heads"
    if d.head_dim % 2:
        yield f"the drafter's heads are {d.head_dim} wide; rotation turns pairs"
    if d.hidden % d.conv_group:
        yield f"the drafter's hidden size {d.hidden} is no multiple of its convolution's group, {d.conv_group}"
    if d.selector is not None and d.selector.top_k > d.vocab:
        yield f"the drafter selects of {d.selector.top_k} candidates, its vocabulary is {d.vocab}"
