"""Gated DeltaNet between its projections, in two regions: the convolution by channels, the recurrence by heads.

The recurrence runs step by step at any number of rows. Certain rows go into the state in place, the uncertain ones
into a copy, and onto the tape: see cache/recurrent.py.
"""

from __future__ import annotations

import math

import numpy as np

from turbospark.kernels.api import L2_EPS
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.delta_step import replay_row, step_row
from turbospark.kernels.cpu.elementary import CODE
from turbospark.kernels.cpu.elementwise import add_product_row, copy_row, gate_row, silu_row, zero_row
from turbospark.kernels.cpu.inputs import aligned, share
from turbospark.kernels.cpu.norms import l2_row, rms_row
from turbospark.kernels.cpu.record import get, load, put, real, store
from turbospark.kernels.cpu.threads import wait

FIELDS = (
    # a cache, as cache/recurrent.py lays it out; block: rows of a slot's tape
    *("value_heads", "key_width", "value_width", "channels", "taps", "block"),
    *("state", "window", "taped_inputs", "taped_k", "taped_u", "taped_decay"),
    # conv float32 [taps, channels]; a_neg and dt_bias [value_heads]; norm [value_width]; key_head int64 [value_heads]
    *("key_heads", "conv", "a_neg", "dt_bias", "norm", "eps", "key_head"),
    # rows float32 qkv [rows, channels], z and out [rows, value_heads, value_width], a and b [rows, value_heads]
    *("rows", "qkv", "z", "a", "b", "out"),
    # int64 [spans, SPAN_FIELDS]; mixed float32 [rows, channels]; g and beta [rows, value_heads]; a thread's own memory
    *("spans", "span_count", "mixed", "decays", "betas", "own", "own_size"),
)
VALUE_HEADS, KEY_WIDTH, VALUE_WIDTH, CHANNELS, TAPS, BLOCK = range(6)
STATE, WINDOW, TAPED_INPUTS, TAPED_K, TAPED_U, TAPED_DECAY = range(6, 12)
KEY_HEADS, CONV, A_NEG, DT_BIAS, NORM, EPS, KEY_HEAD = range(12, 19)
ROWS, QKV, Z, A, B, OUT = range(19, 25)
SPANS, SPAN_COUNT, MIXED, DECAYS, BETAS, OWN, OWN_SIZE = range(25, 32)
CACHE_FIELDS = FIELDS[: TAPED_DECAY + 1]
SPAN_SLOT, SPAN_START, SPAN_STOP, SPAN_CERTAIN, SPAN_FIELDS = range(5)
SILU = CODE["silu"]


@kernel
def own_bytes(key_width, value_width):
    """Memory of a thread: a state, k and q of a row, u."""
    return aligned(4 * key_width * value_width) + aligned(8 * key_width) + aligned(4 * value_width)


@kernel
def _convolve(record, span, first, last):
    """silu of the causal convolution of a span's rows, channels first..last-1; moves the window, tapes the inputs."""
    channels, taps, slot = get(record, CHANNELS), get(record, TAPS), get(span, SPAN_SLOT)
    start, stop, certain = get(span, SPAN_START), get(span, SPAN_STOP), get(span, SPAN_CERTAIN)
    line, count = 4 * channels, last - first
    x = get(record, QKV) + start * line + 4 * first
    out = get(record, MIXED) + start * line + 4 * first
    window = get(record, WINDOW) + slot * (taps - 1) * line + 4 * first
    conv = get(record, CONV) + 4 * first
    for i in range(stop - start):
        zero_row(out + i * line, count)
        for tap in range(taps):
            before = i + tap - (taps - 1)
            source = x + before * line if before >= 0 else window + (i + tap) * line
            add_product_row(source, conv + tap * line, out + i * line, count)
        silu_row(out + i * line, out + i * line, count)
    for i in range(taps - 1):
        before = certain + i - (taps - 1)
        copy_row(x + before * line if before >= 0 else window + (certain + i) * line, window + i * line, count)
    tape = get(record, TAPED_INPUTS) + slot * get(record, BLOCK) * line + 4 * first
    for i in range(start + certain, stop):
        copy_row(x + (i - start) * line, tape + (i - start - certain) * line, count)


@kernel
def convolve(record, thread, threads):
    """A thread's share of the channels, for all spans."""
    first, last = share(get(record, CHANNELS), 16, thread, threads)
    if first < last:
        for i in range(get(record, SPAN_COUNT)):
            _convolve(record, get(record, SPANS) + 8 * SPAN_FIELDS * i, first, last)


@kernel
def gates(record, thread, threads):
    """exp(a_neg * softplus(a + dt_bias)) and sigmoid(b) of a thread's share of the rows."""
    heads = get(record, VALUE_HEADS)
    first, last = share(get(record, ROWS), 1, thread, threads)
    for i in range(first * heads, last * heads):
        at, head = 4 * i, 4 * (i % heads)
        x = np.float64(load(get(record, A) + at) + load(get(record, DT_BIAS) + head))
        softplus = max(x, 0.0) + math.log1p(math.exp(-abs(x)))
        store(get(record, DECAYS) + at, np.float32(math.exp(load(get(record, A_NEG) + head) * softplus)))
        store(get(record, BETAS) + at, np.float32(1 / (1 + math.exp(-np.float64(load(get(record, B) + at))))))


@kernel
def _recur(record, span, head, own):
    """A span's rows through one head's state; out gets the mixtures, not yet normed."""
    key_width, value_width = get(record, KEY_WIDTH), get(record, VALUE_WIDTH)
    heads, channels, slot = get(record, VALUE_HEADS), get(record, CHANNELS), get(span, SPAN_SLOT)
    keys = get(record, KEY_HEADS) * key_width
    size = 4 * key_width * value_width
    state = get(record, STATE) + (slot * heads + head) * size
    k = own + aligned(size)
    q, u = k + 4 * key_width, k + aligned(8 * key_width)
    source = 4 * get(get(record, KEY_HEAD), head) * key_width
    start, certain = get(span, SPAN_START), get(span, SPAN_CERTAIN)
    scale, one, eps = np.float32(1 / math.sqrt(key_width)), np.float32(1), np.float32(L2_EPS)
    for row in range(start, get(span, SPAN_STOP)):
        loose = row - start - certain
        if loose == 0:  # from here on the committed state is left as it is
            copy_row(state, own, key_width * value_width)
            state = own
        mixed = get(record, MIXED) + 4 * row * channels
        l2_row(mixed + source, eps, scale, q, key_width)
        l2_row(mixed + 4 * keys + source, eps, one, k, key_width)
        place = slot * get(record, BLOCK) * heads + loose * heads + head
        change = get(record, TAPED_U) + 4 * place * value_width if loose >= 0 else u
        decay = load(get(record, DECAYS) + 4 * (row * heads + head))
        beta = load(get(record, BETAS) + 4 * (row * heads + head))
        v = mixed + 4 * (2 * keys + head * value_width)
        out = get(record, OUT) + 4 * (row * heads + head) * value_width
        step_row(state, key_width, value_width, k, q, v, decay, beta, change, out)
        if loose >= 0:
            copy_row(k, get(record, TAPED_K) + 4 * place * key_width, key_width)
            store(get(record, TAPED_DECAY) + 4 * place, decay)


@kernel
def recur(record, thread, threads):
    """A thread's share of the heads of all spans: recurrence, norm, and the gate silu(z)."""
    heads, width, z = get(record, VALUE_HEADS), get(record, VALUE_WIDTH), get(record, Z)
    own = get(record, OWN) + thread * get(record, OWN_SIZE)
    for item in range(thread, get(record, SPAN_COUNT) * heads, threads):
        span, head = get(record, SPANS) + 8 * SPAN_FIELDS * (item // heads), item % heads
        _recur(record, span, head, own)
        for row in range(get(span, SPAN_START), get(span, SPAN_STOP)):
            at = 4 * (row * heads + head) * width
            out = get(record, OUT) + at
            rms_row(out, get(record, NORM), real(record, EPS), out, width)
            gate_row(SILU, z + at, out, out, width)


@callback
def gated_delta(record, team, thread, threads):
    """All of it."""
    convolve(record, thread, threads)
    gates(record, thread, threads)
    wait(team, threads)
    recur(record, thread, threads)


@callback
def commit(record, team, thread, threads):
    """Applies the first rows of one span's tape, SPAN_STOP of them, to the state and the window of its slot."""
    span = get(record, SPANS)
    slot, count, block = get(span, SPAN_SLOT), get(span, SPAN_STOP), get(record, BLOCK)
    key_width, value_width = get(record, KEY_WIDTH), get(record, VALUE_WIDTH)
    heads = get(record, VALUE_HEADS)
    first, last = share(heads, 1, thread, threads)
    for head in range(first, last):
        state = get(record, STATE) + 4 * (slot * heads + head) * key_width * value_width
        for i in range(count):
            place = (slot * block + i) * heads + head
            k, u = get(record, TAPED_K) + 4 * place * key_width, get(record, TAPED_U) + 4 * place * value_width
            replay_row(state, key_width, value_width, k, u, load(get(record, TAPED_DECAY) + 4 * place))
    channels, taps = get(record, CHANNELS), get(record, TAPS)
    first, last = share(channels, 16, thread, threads)
    window = get(record, WINDOW) + 4 * (slot * (taps - 1) * channels + first)
    tape = get(record, TAPED_INPUTS) + 4 * (slot * block * channels + first)
    for i in range(taps - 1 if first < last else 0):
        before = count + i - (taps - 1)
        source = tape + 4 * before * channels if before >= 0 else window + 4 * (count + i) * channels
        copy_row(source, window + 4 * i * channels, last - first)


@kernel
def set_cache(record, cache, spans, count):
    """Tells the record where a cache lies, CACHE_FIELDS at an address, and which spans of it are meant."""
    for i in range(TAPED_DECAY + 1):
        put(record, i, get(cache, i))
    put(record, SPANS, spans)
    put(record, SPAN_COUNT, count)
