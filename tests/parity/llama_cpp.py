"""llama.cpp as an oracle: the log-probabilities it gives after a prompt of token ids, in float32 throughout, and
the token ids it makes of a text."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xllamacpp


def vocabulary(count: int) -> dict[str, Any]:
    """Metadata of a tokenizer of `count` words that llama.cpp accepts; ids are what the tests speak."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": [f"<{i}>" for i in range(count)],
        "tokenizer.ggml.token_type": np.ones(count, np.int32),
        "tokenizer.ggml.merges": ["< 0"],
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }


class LlamaCpp:
    """One GGUF file, run on one thread; the file's vocabulary should be `vocabulary`'s."""

    def __init__(self, path: Path, context: int = 256):
        params = xllamacpp.CommonParams()
        params.model.path = str(path)
        params.n_ctx, params.n_parallel, params.n_gpu_layers = context, 1, 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
        params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.warmup, params.verbosity = False, 0
        self._server = xllamacpp.Server(params)

    def logprobs(self, ids: Sequence[int], vocab: int, top: int | None = None) -> np.ndarray:
        """float64 [vocab] of the token after `ids`, from an empty cache; NaN outside the `top` best where given."""
        asked = {
            "prompt": list(ids),
            "n_predict": 1,
            "n_probs": top or vocab,
            "temperature": 1.0,
            "cache_prompt": False,
        }
        answer = self._server.handle_completions(asked)
        if "choices" not in answer:
            raise RuntimeError(f"llama.cpp: {answer}")
        out = np.full(vocab, np.nan)
        for entry in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            out[entry["id"]] = entry["logprob"]
        return out

    def tokenize(self, text: str, special: bool) -> list[int]:
        """Ids with no BOS; special: texts of control tokens become those tokens."""
        asked = {"content": text, "add_special": False, "parse_special": special}
        request = urllib.request.Request(
            f"{self._server.listening_address}/tokenize",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["tokens"]


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """float64, over the last axis."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
