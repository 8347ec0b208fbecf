"""Which tokens of a verified block stand: those the target itself draws."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from turbospark.engine.sampler import Drawn, Sampler
from turbospark.errors import TurbosparkError


def accept(logits: np.ndarray, proposals: Sequence[int], sampler: Sampler, position: int) -> list[Drawn]:
    """The 1..n+1 tokens that plain decoding would draw here, one forward each.

    logits: float32 [n+1, vocab], the rows of the anchor and of the n proposals. position: that of the first
    token drawn. Row i holds only while every token before it was proposed right, so the first draw that
    differs ends the block, and is kept. Proposals decide how many tokens come, never which.

    Errors: those of `Sampler.draw` at the first row. One at a later row ends the block before it: the request
    may be over by then, and otherwise meets the error again at its next first row.
    """
    if len(logits) != len(proposals) + 1:
        raise TurbosparkError(
            "shape_mismatch",
            f"a block of {len(proposals)} proposals needs {len(proposals) + 1} rows, has {len(logits)}",
        )
    drawn: list[Drawn] = []
    for row, proposal in zip(logits, [*proposals, None], strict=True):
        try:
            drawn.append(sampler.draw(row, position + len(drawn), [d.token for d in drawn]))
        except TurbosparkError:
            if not drawn:
                raise
            break
        if drawn[-1].token != proposal:
            break
    return drawn
