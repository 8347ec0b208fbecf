"""Attention's sublayers as regions: alone, between its projections, and with them as a whole branch of the stream."""

from __future__ import annotations

from turbospark.kernels.cpu.attention import mixtures
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.heads import prepare
from turbospark.kernels.cpu.projection import merged, projected
from turbospark.kernels.cpu.record import get
from turbospark.kernels.cpu.threads import wait

FIELDS = ("qkv", "heads", "output")  # of a branch: addresses of the records of its three parts
QKV, HEADS, OUTPUT = range(3)


@kernel
def attended(record, team, thread, threads):
    """Head norms, rotation, the way into the cache, attention and the output gate, after `attention.begin`."""
    prepare(record, thread, threads)
    wait(team, threads)
    mixtures(record, team, thread, threads)


@callback
def attend(record, team, thread, threads):
    attended(record, team, thread, threads)


@callback
def attention_alone(record, team, thread, threads):
    mixtures(record, team, thread, threads)


@callback
def branch(record, team, thread, threads):
    """Projection, attention, and the way back into the stream."""
    projected(get(record, QKV), team, thread, threads)
    wait(team, threads)
    attended(get(record, HEADS), team, thread, threads)
    wait(team, threads)
    merged(get(record, OUTPUT), team, thread, threads)
