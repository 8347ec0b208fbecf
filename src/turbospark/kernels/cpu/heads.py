"""What attention does to projected rows before it: head norms, rotation, and the way into the cache."""

from __future__ import annotations

from turbospark.kernels.cpu import attention
from turbospark.kernels.cpu.attention import key_at, padded, query_at, value_at
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.elementwise import cache_row, copy_row, zero_row
from turbospark.kernels.cpu.norms import rms_row
from turbospark.kernels.cpu.record import get, real
from turbospark.kernels.cpu.rotation import rotate_row

FIELDS = (
    *attention.FIELDS,
    # projected rows float32: addresses, and floats from query head to query head
    *("queries", "keys", "values", "query_head", "positions"),
    # addresses of norms, 0 where there are none, and of the angles' tables, float32 [positions, pairs]
    *("q_norm", "k_norm", "eps", "cos", "sin", "pairs", "interleaved"),
)
_OWN = len(attention.FIELDS)
QUERIES, KEYS, VALUES, QUERY_HEAD, POSITIONS = range(_OWN, _OWN + 5)
Q_NORM, K_NORM, EPS, COS, SIN, PAIRS, INTERLEAVED = range(_OWN + 5, _OWN + 12)


@kernel
def _turned(record, source, norm, position, out):
    """One head of one row, normed and rotated, with zeros behind it up to a whole vector."""
    width = get(record, attention.KEY_WIDTH)
    zero_row(out + 4 * (padded(width) - 8), 8)
    if norm != 0:
        rms_row(source, norm, real(record, EPS), out, width)
    else:
        copy_row(source, out, width)
    pairs = get(record, PAIRS)
    if pairs > 0:
        angles = 4 * position * pairs
        rotate_row(out, get(record, COS) + angles, get(record, SIN) + angles, pairs, get(record, INTERLEAVED))


@kernel
def keep(record, item, memory):
    """A key, normed and rotated, and a value to the cache; item: row * kv_heads + head, memory for a padded key."""
    kv_heads, element = get(record, attention.KV_HEADS), get(record, attention.ELEMENT)
    width, value_width = get(record, attention.KEY_WIDTH), get(record, attention.VALUE_WIDTH)
    row, head = item // kv_heads, item % kv_heads
    position, slot = get(get(record, POSITIONS), row), get(get(record, attention.SLOTS), row)
    _turned(record, get(record, KEYS) + 4 * item * width, get(record, K_NORM), position, memory)
    cache_row(element, memory, key_at(record, slot, head, position), width)
    value = get(record, VALUES) + 4 * item * value_width
    cache_row(element, value, value_at(record, slot, head, position), value_width)


@kernel
def prepare(record, thread, threads):
    """A thread's share of the heads: queries to where attention wants them, keys and values to the cache."""
    memory = get(record, attention.OWN) + thread * get(record, attention.OWN_SIZE)
    rows, heads, kv_heads = get(record, attention.ROWS), get(record, attention.HEADS), get(record, attention.KV_HEADS)
    group, width = heads // kv_heads, get(record, attention.KEY_WIDTH)
    for item in range(thread, rows * kv_heads, threads):
        row, head = item // kv_heads, item % kv_heads
        position, out = get(get(record, POSITIONS), row), query_at(record, head, row)
        for i in range(group):
            source = get(record, QUERIES) + 4 * (row * heads + head * group + i) * get(record, QUERY_HEAD)
            _turned(record, source, get(record, Q_NORM), position, out + 4 * i * padded(width))
        keep(record, item, memory)
