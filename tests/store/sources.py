"""Sources of every kind that installs are made from, tiny."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
from ml_dtypes import float8_e4m3fn

from tests.tiny import deepseek2, hf, llama, mtp, qwen3_5
from tests.tiny.dense import write_dense_gguf
from tests.tiny.gguf_file import split_gguf, write_gguf
from tests.tiny.safetensors_file import write_hf_folder

IDS = [5, 3, 60, 7, 7, 1, 42, 9, 88, 2, 30]
qwen = cache(lambda moe: qwen3_5.hf_model(moe))
deepseek_weights = cache(lambda: deepseek2.weights(deepseek2.V3) | mtp.deepseek_mtp(deepseek2.V3, shared=True))
dense = cache(lambda: llama.tiny_llama())


def _llama_gguf(folder: Path) -> Path:
    return write_dense_gguf(folder / "llama.gguf", dense(), {"llama.rope.freq_base": 1000.0})


def _qwen_gguf(folder: Path, moe: bool) -> Path:
    return qwen3_5.write_qwen_gguf(folder / f"qwen-{moe}.gguf", qwen(moe))


def _qwen_head_gguf(folder: Path) -> Path:
    """With an MTP head behind the trunk."""
    model = qwen(False)
    head = mtp.qwen_mtp_gguf(mtp.qwen_mtp(model.config), 4)
    keys = qwen3_5.gguf_metadata(model.config) | {"qwen35.block_count": 5, "qwen35.nextn_predict_layers": 1}
    return write_gguf(folder / "head.gguf", keys, qwen3_5.gguf_arrays(model) | head)


def _split(folder: Path) -> Path:
    model = qwen(True)
    arrays = qwen3_5.gguf_arrays(model)
    names = list(arrays)
    parts = [{name: arrays[name] for name in names[i::3]} for i in range(3)]
    return split_gguf(folder, "split", qwen3_5.gguf_metadata(model.config), parts)[1]


def _deepseek_gguf(folder: Path) -> Path:
    arrays = {name: a for name, a in deepseek_weights().items() if not name.startswith("model.layers.3.")}
    return deepseek2.write_deepseek2_gguf(folder / "deepseek.gguf", deepseek2.V3, arrays, kv_b="both")


def _deepseek_hf(folder: Path) -> Path:
    """An expert a tensor, an MTP layer with experts of its own, two shards."""
    config = {**deepseek2.V3, "num_nextn_predict_layers": 1}
    return deepseek2.write_hf(folder / "deepseek", config, deepseek_weights(), shards=2)


def _qwen_hf(folder: Path) -> Path:
    """Stacked experts with gate and up fused, and tensors of images beside the text model."""
    model = qwen(True)
    images = {"model.visual.patch.weight": np.ones((2, 3, 1, 2, 2), np.float32)}
    return write_hf_folder(folder / "qwen", model.config.to_dict(), {**hf.arrays(model), **images})


GGUFS: dict[str, Callable[[Path], Path]] = {
    "dense": _llama_gguf,
    "hybrid": lambda folder: _qwen_gguf(folder, False),
    "hybrid with a head": _qwen_head_gguf,
    "mixture": lambda folder: _qwen_gguf(folder, True),
    "mixture in parts": _split,
    "deepseek2": _deepseek_gguf,
}


def _deepseek_fp8(folder: Path) -> Path:
    """Matrices as FP8 with a scale a block, an expert a tensor, as DeepSeek-V3 is published."""
    config = {**deepseek2.V3, "quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}}
    arrays: dict[str, np.ndarray] = {}
    for name, values in deepseek2.weights(config).items():
        if values.ndim != 2 or not name.endswith("_proj.weight"):
            arrays[name] = values
            continue
        blocks = [-(-n // 16) for n in values.shape]
        scales = np.random.default_rng(len(name)).uniform(0.5, 2, blocks).astype(np.float32)
        arrays[name], arrays[name + "_scale_inv"] = values.astype(float8_e4m3fn), scales
    return deepseek2.write_hf(folder / "fp8", config, arrays)


def _stacked_fp8(folder: Path) -> Path:
    """Stacked experts as FP8, gate and up fused, with a scale a block of 8 x 8."""
    config = {**deepseek2.V3, "quantization_config": {"quant_method": "fp8", "weight_block_size": [8, 8]}}
    made = deepseek2.weights(config)
    arrays: dict[str, np.ndarray] = {name: values for name, values in made.items() if ".experts." not in name}
    for layer in range(config["first_k_dense_replace"], config["num_hidden_layers"]):
        experts = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            np.stack([made[f"{experts}{e}.{role}_proj.weight"] for e in range(config["n_routed_experts"])])
            for role in ("gate", "up", "down")
        )
        for name, values in (("gate_up_proj", np.concatenate([gate, up], 1)), ("down_proj", down)):
            blocks = (len(values), *(-(-n // 8) for n in values.shape[1:]))
            scales = np.random.default_rng(layer).uniform(0.5, 2, blocks).astype(np.float32)
            arrays[experts + name], arrays[f"{experts}{name}_scale_inv"] = values.astype(float8_e4m3fn), scales
    return deepseek2.write_hf(folder / "stacked", config, arrays)


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "dense": lambda folder: hf.write(folder / "llama", dense()),
    "mixture": _qwen_hf,
    "deepseek2": _deepseek_hf,
    "deepseek2 in FP8": _deepseek_fp8,
    "deepseek2 in stacked FP8": _stacked_fp8,
}
SOURCES = {f"GGUF, {name}": made for name, made in GGUFS.items()}
SOURCES |= {f"folder, {name}": made for name, made in FOLDERS.items()}
