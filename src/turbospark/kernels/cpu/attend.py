"""`attend`: head norms, rotation, the way into the cache, attention and the output gate, in one region."""

from __future__ import annotations

from turbospark.kernels.cpu.attention import SPLIT, merged, tiles
from turbospark.kernels.cpu.compile import callback
from turbospark.kernels.cpu.heads import prepare
from turbospark.kernels.cpu.record import get
from turbospark.kernels.cpu.threads import wait


@callback
def attend(record, team, thread, threads):
    """All of it, after `attention.begin`."""
    prepare(record, thread, threads)
    wait(team, threads)
    tiles(record, thread, threads)
    if get(record, SPLIT) != 0:
        wait(team, threads)
        merged(record, thread, threads)


@callback
def attention_only(record, team, thread, threads):
    """Queries are where attention wants them, keys and values in the cache."""
    tiles(record, thread, threads)
    if get(record, SPLIT) != 0:
        wait(team, threads)
        merged(record, thread, threads)
