"""All layers of a model in one region: each an attention branch and a feed-forward branch, in place in the stream."""

from __future__ import annotations

from turbospark.kernels.cpu.compile import call_address, callback
from turbospark.kernels.cpu.elementwise import copy_row
from turbospark.kernels.cpu.inputs import share
from turbospark.kernels.cpu.record import get
from turbospark.kernels.cpu.threads import wait

# how many layers, described behind the fields; the stream, and how many floats it has
FIELDS = ("layers", "stream", "count")
LAYERS, STREAM, COUNT = range(len(FIELDS))
# of a layer: regions and records of its branches; where a copy of the stream behind it goes, or 0
LAYER_FIELDS = ("attend", "attention", "feed", "feed_forward", "tap")
ATTEND, ATTENTION, FEED, FEED_FORWARD, TAP = range(len(LAYER_FIELDS))


@callback
def trunk(record, team, thread, threads):
    stream = get(record, STREAM)
    first, last = share(get(record, COUNT), 16, thread, threads)
    for i in range(get(record, LAYERS)):
        layer = record + 8 * (len(FIELDS) + len(LAYER_FIELDS) * i)
        call_address(get(layer, ATTEND), (get(layer, ATTENTION), team, thread, threads))
        wait(team, threads)
        call_address(get(layer, FEED), (get(layer, FEED_FORWARD), team, thread, threads))
        wait(team, threads)
        tap = get(layer, TAP)
        if tap != 0:  # the stream is not written to before the next two waits
            copy_row(stream + 4 * first, tap + 4 * first, last - first)
