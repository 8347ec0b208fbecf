"""Writes GGUF files with random weights at published shapes: what a speed needs, without a download.

    python -m turbospark.bench.random_model llama-8b llama8b.gguf --format Q4_K
    python -m turbospark.bench.random_model deepseek-v2-lite dsv2lite.gguf --format Q8_0 --experts 16 --skew 0.5

Needs the `gguf` package. Rows repeat every 64: the same bytes to read and to multiply, encoded in no time.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np

from turbospark import quant
from turbospark.tokenizer.vocabulary import CONTROL, NORMAL, byte_alphabet

ROWS = 64  # that differ
Tensor = tuple[str, tuple[int, ...], str]  # name, shape, format


def llama_8b(format: str, experts: int) -> tuple[str, dict[str, Any], int, Iterator[Tensor]]:
    """Llama 3 8B's shapes; `experts` does not apply."""
    hidden, layers, vocab, width, kv = 4096, 32, 128256, 14336, 1024
    numbers = {
        "block_count": layers,
        "context_length": 8192,
        "embedding_length": hidden,
        "feed_forward_length": width,
        "attention.head_count": 32,
        "attention.head_count_kv": 8,
        "rope.dimension_count": 128,
        "rope.freq_base": 500000.0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "vocab_size": vocab,
    }

    def tensors() -> Iterator[Tensor]:
        yield "token_embd.weight", (vocab, hidden), format
        yield "output.weight", (vocab, hidden), format
        yield "output_norm.weight", (hidden,), "F32"
        for i in range(layers):
            block = f"blk.{i}."
            yield block + "attn_norm.weight", (hidden,), "F32"
            yield block + "ffn_norm.weight", (hidden,), "F32"
            yield block + "attn_q.weight", (hidden, hidden), format
            yield block + "attn_k.weight", (kv, hidden), format
            yield block + "attn_v.weight", (kv, hidden), format
            yield block + "attn_output.weight", (hidden, hidden), format
            yield block + "ffn_gate.weight", (width, hidden), format
            yield block + "ffn_up.weight", (width, hidden), format
            yield block + "ffn_down.weight", (hidden, width), format

    return "llama", numbers, vocab, tensors()


def deepseek_v2_lite(format: str, experts: int) -> tuple[str, dict[str, Any], int, Iterator[Tensor]]:
    """DeepSeek-V2-Lite's shapes, of its 64 experts as many as wanted."""
    hidden, layers, vocab, dense, width, heads, rank = 2048, 27, 102400, 10944, 1408, 16, 512
    numbers = {
        "block_count": layers,
        "context_length": 163840,
        "embedding_length": hidden,
        "feed_forward_length": dense,
        "expert_count": experts,
        "expert_used_count": 6,
        "expert_group_count": 1,
        "expert_group_used_count": 1,
        "expert_gating_func": 1,
        "leading_dense_block_count": 1,
        "vocab_size": vocab,
        "expert_feed_forward_length": width,
        "expert_shared_count": 2,
        "expert_weights_scale": 1.0,
        "attention.head_count": heads,
        "attention.head_count_kv": 1,
        "attention.key_length": rank + 64,
        "attention.value_length": rank,
        "attention.kv_lora_rank": rank,
        "attention.key_length_mla": 192,
        "attention.value_length_mla": 128,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "rope.dimension_count": 64,
        "rope.freq_base": 10000.0,
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": 40.0,
        "rope.scaling.original_context_length": 4096,
        "rope.scaling.yarn_log_multiplier": 0.0707,
    }

    def tensors() -> Iterator[Tensor]:
        yield "token_embd.weight", (vocab, hidden), format
        yield "output.weight", (vocab, hidden), format
        yield "output_norm.weight", (hidden,), "F32"
        for i in range(layers):
            block = f"blk.{i}."
            for name, n in (("attn_norm", hidden), ("ffn_norm", hidden), ("attn_kv_a_norm", rank)):
                yield f"{block}{name}.weight", (n,), "F32"
            yield block + "attn_q.weight", (heads * 192, hidden), format
            yield block + "attn_kv_a_mqa.weight", (rank + 64, hidden), format
            yield block + "attn_k_b.weight", (heads, rank, 128), format
            yield block + "attn_v_b.weight", (heads, 128, rank), format
            yield block + "attn_output.weight", (hidden, heads * 128), format
            if i > 0:
                yield block + "ffn_gate_inp.weight", (experts, hidden), "F32"
            inner = (("", (), dense),) if i == 0 else (("_exps", (experts,), width), ("_shexp", (), 2 * width))
            for end, many, n in inner:
                yield f"{block}ffn_gate{end}.weight", (*many, n, hidden), format
                yield f"{block}ffn_up{end}.weight", (*many, n, hidden), format
                yield f"{block}ffn_down{end}.weight", (*many, hidden, n), format

    return "deepseek2", numbers, vocab, tensors()


MODELS = {"llama-8b": llama_8b, "deepseek-v2-lite": deepseek_v2_lite}


@cache
def _few(format: str, columns: int) -> np.ndarray:
    """Encoded rows [ROWS, bytes of a row] whose products keep the size of their input."""
    values = np.random.default_rng(columns).standard_normal((ROWS, columns)) / np.sqrt(columns)
    return quant.encode(values.astype(np.float32), format).data


def _data(shape: tuple[int, ...], format: str, skew: float, rng: np.random.Generator) -> np.ndarray:
    if len(shape) == 1:
        return np.ones(shape, np.float32)
    if format == "F32":  # a router: an expert whose row is larger is chosen more often
        sizes = 0.1 * rng.permutation(np.arange(1, shape[0] + 1)) ** -skew
        return (rng.standard_normal(shape) * sizes[:, None]).astype(np.float32)
    rows = prod(shape[:-1])
    return np.resize(_few(format, shape[-1]), (rows, _few(format, shape[-1]).shape[1])).reshape(*shape[:-1], -1)


def write(path: str, model: str, format: str, experts: int, skew: float = 0.0) -> None:
    """One tensor in memory at a time."""
    try:
        import gguf
    except ImportError:
        raise SystemExit("random models are written by the gguf package: pip install gguf") from None

    family, numbers, vocab, tensors = MODELS[model](format, experts)
    writer = gguf.GGUFWriter(path, family)
    add: dict[type, Any] = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in numbers.items():
        add[type(value)](f"{family}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    tokens = [*byte_alphabet(), "ab"]  # reads any text, a byte at a time
    writer.add_token_list([*tokens, *(f"t{i}" for i in range(len(tokens), vocab))])
    writer.add_token_types([NORMAL] * (vocab - 2) + [CONTROL] * 2)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(vocab - 2)
    writer.add_eos_token_id(vocab - 1)
    rng, listed = np.random.default_rng(0), list(tensors)
    for name, shape, kind in listed:
        floats = kind == "F32"
        row = 4 * shape[-1] if floats else _few(kind, shape[-1]).shape[1]
        stored = (*shape[:-1], shape[-1] if floats else row)
        type_ = gguf.GGMLQuantizationType[kind]
        dtype = np.dtype(np.float32 if floats else np.uint8)
        writer.add_tensor_info(name, stored, dtype, prod(shape[:-1]) * row, raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, shape, kind in listed:
        writer.write_tensor_data(_data(shape, kind, skew, rng))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes a GGUF with random weights at published shapes (needs gguf)")
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("path")
    parser.add_argument("--format", default="Q8_0", help="of the matrices (default: Q8_0)")
    parser.add_argument("--experts", type=int, default=64, help="of a mixture (default: 64)")
    parser.add_argument("--skew", type=float, default=0.0, help="router row n is n ** -X as large (default: 0)")
    given = parser.parse_args()
    write(given.path, given.model, given.format, given.experts, given.skew)


if __name__ == "__main__":
    main()
