"""What a transformers model is to the tests: random weights, logits, and arrays to write to a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.tiny.safetensors_file import write_hf_folder

torch.set_num_threads(1)  # for a tiny model more threads only wait for each other


def random_model(config: Any, seed: int, *, norm: float, embedding: float) -> Any:
    """A float32 model at a scale where every tensor has a say in the logits: norms about `norm`, biases about 0."""
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    random = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            values = random.standard_normal(tuple(parameter.shape)).astype(np.float32)
            if name.endswith("norm.weight"):
                values = norm + 0.3 * values
            elif name.endswith("embed_tokens.weight"):
                values *= embedding
            elif name.endswith(".bias"):
                values *= 0.3
            else:
                values *= np.float32(1.5 / values.shape[-1] ** 0.5)
            parameter.copy_(torch.from_numpy(values))
    return model


def logits(model: Any, ids: list[int], **options: Any) -> np.ndarray:
    """float32 [T, vocab] of a prompt in one call, without a cache."""
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False, **options).logits[0].numpy()


def arrays(model: Any) -> dict[str, np.ndarray]:
    """The weights by name, as a checkpoint stores them."""
    found = {name: value.numpy() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del found["lm_head.weight"]
    return found


def write(path: Path, model: Any, **config: Any) -> Path:
    """The model's folder; `config` changes what its config.json says."""
    return write_hf_folder(path, {**model.config.to_dict(), **config}, arrays(model))
