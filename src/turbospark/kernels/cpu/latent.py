"""`latent`: absorbed attention over the compressed rows, with the products by k_up and v_up before and after it."""

from __future__ import annotations

from turbospark.kernels.cpu import attention, linear
from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.attention import key_at, mixtures, padded, query_at
from turbospark.kernels.cpu.compile import callback, kernel
from turbospark.kernels.cpu.elementwise import cache_row, copy_row, zero_row
from turbospark.kernels.cpu.inputs import aligned, share
from turbospark.kernels.cpu.norms import rms_row
from turbospark.kernels.cpu.projection import STEP
from turbospark.kernels.cpu.record import get, real
from turbospark.kernels.cpu.rotation import rotate_row
from turbospark.kernels.cpu.threads import wait

FIELDS = (
    *attention.FIELDS,
    # widths of a head; queries float32 [rows, heads * (nope + rope)], row [rows, latent + rope]; int64 [rows]
    *("nope", "rope", "latent", "value", "queries", "row", "positions"),
    *("norm", "eps", "cos", "sin", "interleaved"),
    # int64 [heads] each: the weights of k_up [latent, nope] and v_up [value, latent]; whether they read quantised rows
    *("k_up", "v_up", "k_integer", "v_integer"),
    # memory for the inputs of these products, of all heads; and the mixtures float32 [rows, heads * value]
    *("inputs", "result"),
)
_OWN = len(attention.FIELDS)
NOPE, ROPE, LATENT, VALUE, QUERIES, ROW, POSITIONS = range(_OWN, _OWN + 7)
NORM, EPS, COS, SIN, INTERLEAVED = range(_OWN + 7, _OWN + 12)
K_UP, V_UP, K_INTEGER, V_INTEGER, INPUTS, RESULT = range(_OWN + 12, _OWN + 18)


@kernel
def head_bytes(rows, columns):
    """Memory of one head's input rows and their quantised copy."""
    return aligned(4 * rows * columns) + aligned(quantised_bytes(rows, columns))


@kernel
def _turned(record, x, position):
    pairs = get(record, ROPE) // 2
    at = 4 * position * pairs
    rotate_row(x, get(record, COS) + at, get(record, SIN) + at, pairs, get(record, INTERLEAVED))


@kernel
def _prepare(record, thread, threads):
    """A thread's share of the heads: the part of each query that k_up reads, and the rotated part; and the new rows."""
    rows, heads = get(record, attention.ROWS), get(record, attention.HEADS)
    nope, rope, latent = get(record, NOPE), get(record, ROPE), get(record, LATENT)
    width, size, slots = padded(latent + rope), head_bytes(rows, nope), get(record, attention.SLOTS)
    first, last = share(heads, 1, thread, threads)
    for head in range(first, last):
        inputs = get(record, INPUTS) + head * size
        for i in range(rows):
            source = get(record, QUERIES) + 4 * (i * heads + head) * (nope + rope)
            copy_row(source, inputs + 4 * i * nope, nope)
            query = query_at(record, 0, i) + 4 * head * width
            zero_row(query + 4 * (width - 8), 8)
            copy_row(source + 4 * nope, query + 4 * latent, rope)
            _turned(record, query + 4 * latent, get(get(record, POSITIONS), i))
        if get(record, K_INTEGER) != 0:
            quantise(inputs, rows, nope, nope, inputs + aligned(4 * rows * nope), 0, rows)
    memory = get(record, attention.OWN) + thread * get(record, attention.OWN_SIZE)
    first, last = share(rows, 1, thread, threads)
    for i in range(first, last):
        source, position = get(record, ROW) + 4 * i * (latent + rope), get(get(record, POSITIONS), i)
        rms_row(source, get(record, NORM), real(record, EPS), memory, latent)
        copy_row(source + 4 * latent, memory + 4 * latent, rope)
        _turned(record, memory + 4 * latent, position)
        place = key_at(record, get(slots, i), 0, position)
        cache_row(get(record, attention.ELEMENT), memory, place, latent + rope)


@kernel
def _products(record, weights, columns, outputs, y, y_stride, y_head, thread, threads):
    """A thread's share of the outputs of all heads: head h reads its inputs and writes rows at y + 4 * h * y_head."""
    rows, heads = get(record, attention.ROWS), get(record, attention.HEADS)
    size = head_bytes(rows, columns)
    first, last = share(heads * outputs, STEP, thread, threads)
    for head in range(first // outputs, (last + outputs - 1) // outputs):
        start, stop = max(first - head * outputs, 0), min(last - head * outputs, outputs)
        inputs = get(record, INPUTS) + head * size
        quants = inputs + aligned(4 * rows * columns)
        linear.rows(get(weights, head), inputs, quants, rows, y + 4 * head * y_head, y_stride, start, stop, 0)


@kernel
def _quantise_mixtures(record, thread, threads):
    """A thread's share of the heads: the mixtures of latents, for v_up."""
    rows, latent = get(record, attention.ROWS), get(record, LATENT)
    first, last = share(get(record, attention.HEADS), 1, thread, threads)
    for head in range(first, last):
        inputs = get(record, INPUTS) + head * head_bytes(rows, latent)
        quantise(inputs, rows, latent, latent, inputs + aligned(4 * rows * latent), 0, rows)


@callback
def latent(record, team, thread, threads):
    """All of it, after `attention.begin`; attention writes its mixtures to the inputs of v_up."""
    heads, width = get(record, attention.HEADS), padded(get(record, LATENT) + get(record, ROPE))
    _prepare(record, thread, threads)
    wait(team, threads)
    query, latents = get(record, attention.Q), get(record, LATENT)
    _products(record, get(record, K_UP), get(record, NOPE), latents, query, heads * width, width, thread, threads)
    wait(team, threads)
    mixtures(record, team, thread, threads)
    wait(team, threads)
    if get(record, V_INTEGER) != 0:
        _quantise_mixtures(record, thread, threads)
        wait(team, threads)
    value = get(record, VALUE)
    _products(record, get(record, V_UP), latents, value, get(record, RESULT), heads * value, value, thread, threads)
