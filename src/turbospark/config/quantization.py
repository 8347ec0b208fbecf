"""How an HF folder says its weights are packed: `quantization_config` of config.json."""

from __future__ import annotations

from turbospark.config.keys import Keys

BLOCK = (128, 128)


def scale_block(keys: Keys) -> tuple[int, int]:
    """Rows and columns that one FP8 scale covers. Methods that no format here reads are refused by name.

    Which tensors are FP8 is seen from the tensors themselves, so lists of modules left alone are not needed.
    """
    declared = keys.section("quantization_config")
    if not declared.has("quant_method"):
        return BLOCK
    declared.one_of("quant_method", ("fp8",))
    block = declared.get("weight_block_size", BLOCK)
    whole = isinstance(block, list | tuple) and all(isinstance(n, int) and not isinstance(n, bool) for n in block)
    if not whole or len(block) != 2 or min(block) < 1:
        raise declared.wrong("weight_block_size", block, "two whole numbers above 0, rows and columns")
    return block[0], block[1]
