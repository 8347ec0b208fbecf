r"""How byte-level BPE cuts a text into words before merging, by the name in `tokenizer.ggml.pre`.

A pre-tokenizer is a list of regular expressions (Oniguruma). Each cuts every piece the ones before it left: matches
become pieces, and so does what lies between them. The expressions are those of the original tokenizers
(tokenizer.json, tiktoken); llama.cpp, where the names come from, rewrites some of them for a smaller regex engine.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbospark.errors import TurbosparkError


@dataclass(frozen=True)
class PreTokenizer:
    """ignore_merges: a word that is a token as a whole is taken without merging. adds_bos: unless the file says."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False


def _words(letters: str, digits: str, others: str, tail: str = r"[\r\n]*") -> str:
    """The shape that GPT-4's tokenizer began: words, numbers, punctuation with its line ends, white space."""
    return rf"{letters}|{digits}| ?[^\s{others}\p{{N}}]+{tail}|\s*[\r\n]+|\s+(?!\S)|\s+"


_ENDINGS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"  # one space or sign goes with the word it stands before
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"


def _cased(upper: str, lower: str, ending: str = "") -> str:
    """Words cut where a small letter meets a capital."""
    return rf"{_BEFORE}{upper}*{lower}+{ending}|{_BEFORE}{upper}+{lower}*{ending}"


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_PLAIN = rf"{_ENDINGS}|{_BEFORE}\p{{L}}+"
_LLAMA3 = _words(_PLAIN, r"\p{N}{1,3}", r"\p{L}")
_QWEN2 = _words(_PLAIN, r"\p{N}", r"\p{L}")
_QWEN35 = _words(rf"{_ENDINGS}|{_BEFORE}[\p{{L}}\p{{M}}]+", r"\p{N}", r"\p{L}\p{M}")
_TEKKEN = _words(_cased(f"[{_UPPER}]", f"[{_LOWER}]"), r"\p{N}", r"\p{L}", r"[\r\n/]*")
_GPT4O = _words(_cased(f"[{_UPPER}]", f"[{_LOWER}]", f"{_ENDINGS}?"), r"\p{N}{1,3}", r"\p{L}", r"[\r\n/]*")
_KIMI = r"\p{Han}+|" + _words(
    _cased(rf"[[{_UPPER}]&&[^\p{{Han}}]]", rf"[[{_LOWER}]&&[^\p{{Han}}]]", f"{_ENDINGS}?"),
    r"\p{N}{1,3}",
    r"\p{L}",
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
# DeepSeek's cased letters: those of Unicode 11 without Georgian, mathematical and some other ranges.
_LEFT_OUT = (
    "\u0560-\u0588\u10c7-\u10ff\u1c80-\u1c8f\u2d00-\u2d2d\ua790-\ua7ff\uab30-\uab6f\U00010570-\U000105bf"
    "\U00010d50-\U00010d8f\U00016e40-\U00016e7f\U00016ea0-\U00016eff\U0001d400-\U0001d7ff\U0001df00-\U0001dfff"
)
_DEEPSEEK_LETTERS = rf"\s?[[\p{{Lu}}\p{{Ll}}\p{{Lt}}]&&[^{_LEFT_OUT}]]+"
_DEEPSEEK_SIGNS = "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"
_CJK = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CJK_HANGUL = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED = rf"{_PLAIN}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"

_SPLIT_DIGITS = PreTokenizer((r"\p{N}", _GPT2))
_AS_GPT2 = PreTokenizer((_GPT2,))
_AS_LLAMA3 = PreTokenizer((_LLAMA3,))
_AS_QWEN2 = PreTokenizer((_QWEN2,))
_WITH_BOS = PreTokenizer((_LLAMA3,), ignore_merges=True, adds_bos=True)
_AS_DEEPSEEK3 = PreTokenizer((r"\p{N}{1,3}", _CJK, _DEEPSEEK3))
_AS_GPT4O = PreTokenizer((_GPT4O,))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": PreTokenizer((r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "granite-docling", "exaone4"), _AS_GPT2),
    **dict.fromkeys(("gigachat", "a.x-4.0", "mellum", "modern-bert", "roberta-bpe"), _AS_GPT2),
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "codeshell"), _SPLIT_DIGITS),
    **dict.fromkeys(("exaone", "minerva-7b", "mellum2"), _SPLIT_DIGITS),
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral"), _WITH_BOS),
    **dict.fromkeys(("midm-2.0", "lfm2"), _WITH_BOS),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), _AS_LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2"), _AS_QWEN2),
    **dict.fromkeys(("hunyuan", "solar-open", "grok-2"), _AS_QWEN2),
    "qwen35": PreTokenizer((_QWEN35,)),
    **dict.fromkeys(("deepseek-v3", "hunyuan-dense", "joyai-llm"), _AS_DEEPSEEK3),
    "deepseek-llm": PreTokenizer((r"[\r\n]", _DEEPSEEK_LETTERS, _DEEPSEEK_SIGNS, r"\s+$", _CJK_HANGUL, r"\p{N}")),
    "deepseek-coder": PreTokenizer((r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK_HANGUL, r"\p{N}")),
    "tekken": PreTokenizer((_TEKKEN,), ignore_merges=True, adds_bos=True),
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "minimax-m2"), _AS_GPT4O),
    "kimi-k2": PreTokenizer((_KIMI,)),
    "falcon": PreTokenizer((r"[\p{P}$+<=>^~|`]+", _GPT2, "[0-9][0-9][0-9]")),
    **dict.fromkeys(("bloom", "gpt3-finnish", "poro-chat"), PreTokenizer((_BLOOM,))),
    "viking": PreTokenizer((_BLOOM, r"\p{N}")),
    **dict.fromkeys(("bailingmoe", "bailingmoe2", "llada-moe"), PreTokenizer((_BAILING,))),
    "seed-coder": PreTokenizer((_SEED,)),
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Raises `unsupported_tokenizer` for a name that is not in the table."""
    if name not in PRE_TOKENIZERS:
        message = f"the file asks for the pre-tokenizer {name!r} (tokenizer.ggml.pre), which is not known"
        raise TurbosparkError("unsupported_tokenizer", message, "known: " + ", ".join(sorted(PRE_TOKENIZERS)))
    return PRE_TOKENIZERS[name]
