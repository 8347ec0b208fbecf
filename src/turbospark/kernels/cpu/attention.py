"""Attention over cached keys and values, in tiles of queries that read the same keys.

A tile is up to QUERIES // group rows of one slot, times the query heads of one kv head. Keys are taken in the blocks of
64 positions that absolute positions fall in, each block by itself, and the blocks' mixtures are merged in order: so a
row's result is the same in any tile, and the blocks of few rows can be shared out among threads.

`begin` comes first; then, in a region, every thread calls `mixtures`.
"""

from __future__ import annotations

from numba import literally

from turbospark.kernels.cpu.attention_block import BLOCK, LANES, NOTHING, bound, merge_row, mix, scores, weigh
from turbospark.kernels.cpu.compile import call_address, callback, kernel
from turbospark.kernels.cpu.elementwise import copy_row, divide_row, sigmoid_row, zero_row
from turbospark.kernels.cpu.inputs import aligned, share
from turbospark.kernels.cpu.record import get, load, put, real, store
from turbospark.kernels.cpu.threads import wait

QUERIES = 24  # of a tile, or one row's where a kv head has more of them

FIELDS = (
    *("heads", "kv_heads", "key_width", "value_width", "window", "scale", "softcap"),
    # a cache: the kernel for its numbers, their bytes; keys and values, with bytes from slot to slot, head to head and
    # row to row; positions a slot has room for
    *("kernel", "element", "k", "v", "k_slot", "k_head", "k_row", "v_slot", "v_head", "v_row", "capacity"),
    # rows; their slots, first and last positions seen, int64 each; out float32, floats from row to row and head to head
    *("rows", "slots", "first", "last", "out", "out_row", "out_head"),
    # 0, or where the first row's first gate lies, and floats from head to head
    *("gate", "gate_head"),
    # memory: queries float32 [kv_heads, rows, group, padded key_width]; tiles; a thread's own; the parts of split tiles
    *("q", "tiles", "tile_count", "split", "own", "own_size", "parts"),
)
HEADS, KV_HEADS, KEY_WIDTH, VALUE_WIDTH, WINDOW, SCALE, SOFTCAP = range(7)
KERNEL, ELEMENT, K, V, K_SLOT, K_HEAD, K_ROW, V_SLOT, V_HEAD, V_ROW, CAPACITY = range(7, 18)
ROWS, SLOTS, FIRST, LAST, OUT, OUT_ROW, OUT_HEAD, GATE, GATE_HEAD = range(18, 27)
Q, TILES, TILE_COUNT, SPLIT, OWN, OWN_SIZE, PARTS = range(27, 34)
CACHE_FIELDS = FIELDS[KERNEL : CAPACITY + 1]

# of a tile: its first row, how many, the first block and the one behind the last, blocks of the tiles before
TILE_ROW, TILE_ROWS, TILE_BLOCK, TILE_END, TILE_BEFORE, TILE_FIELDS = range(6)


@kernel
def padded(width):
    """Whole vectors of eight."""
    return (width + 7) // 8 * 8


@kernel
def part_width(record):
    """Floats of one query's part: the mixture, the largest score, the sum of weights."""
    return padded(get(record, VALUE_WIDTH)) + 8


@kernel
def key_at(record, slot, head, position):
    """Where the key of a position lies."""
    place = position % get(record, CAPACITY) * get(record, K_ROW)
    return get(record, K) + slot * get(record, K_SLOT) + head * get(record, K_HEAD) + place


@kernel
def value_at(record, slot, head, position):
    """Where the value of a position lies."""
    place = position % get(record, CAPACITY) * get(record, V_ROW)
    return get(record, V) + slot * get(record, V_SLOT) + head * get(record, V_HEAD) + place


@kernel
def query_at(record, head, row):
    """Where the queries of a kv head's group begin, of a row and those after it."""
    rows, group = get(record, ROWS), get(record, HEADS) // get(record, KV_HEADS)
    return get(record, Q) + 4 * (head * rows + row) * group * padded(get(record, KEY_WIDTH))


@kernel
def _plan(record, threads):
    """Cuts the rows into tiles. Returns how many parts of a block's queries there are, 0 when no tile is split."""
    rows, slots, first, last = get(record, ROWS), get(record, SLOTS), get(record, FIRST), get(record, LAST)
    kv_heads = get(record, KV_HEADS)
    most = max(1, QUERIES // (get(record, HEADS) // kv_heads))
    tile, count, before, row = get(record, TILES), 0, 0, 0
    while row < rows:
        end, slot = row, get(slots, row)
        low, high = get(first, row), get(last, row)
        while end < rows and end - row < most and get(slots, end) == slot:
            low, high = min(low, get(first, end)), max(high, get(last, end))
            end += 1
        put(tile, TILE_ROW, row)
        put(tile, TILE_ROWS, end - row)
        put(tile, TILE_BLOCK, low // BLOCK)
        put(tile, TILE_END, high // BLOCK + 1)
        put(tile, TILE_BEFORE, before)
        before += high // BLOCK + 1 - low // BLOCK
        tile += 8 * TILE_FIELDS
        count += 1
        row = end
    split = threads > 1 and count * kv_heads < 2 * threads and before > count
    put(record, TILE_COUNT, count)
    put(record, SPLIT, before * kv_heads if split else 0)
    return get(record, SPLIT)


@kernel
def plan_bytes(rows):
    """Memory for the plan of so many rows."""
    return aligned((8 + 8 * TILE_FIELDS) * rows)


@kernel
def begin(record, cache, rows, slots, positions, first, last, plan, memory, threads):
    """Gets a record ready for `mixtures`, which will use the returned number of bytes at `memory`.

    cache: the address of CACHE_FIELDS. slots and positions int64 [rows]; first and last likewise, or 0: what a causal
    window lets each row see. plan: `plan_bytes` of memory; with `memory` at multiples of 64.
    """
    for i in range(KERNEL, CAPACITY + 1):
        put(record, i, get(cache, i - KERNEL))
    heads, kv_heads, width = get(record, HEADS), get(record, KV_HEADS), padded(get(record, KEY_WIDTH))
    queries = max(QUERIES, heads // kv_heads)
    own = 4 * queries * (BLOCK + 2 * part_width(record)) + 4 * width
    threads_own = memory + aligned(4 * rows * heads * width)
    parts = threads_own + threads * own
    if first == 0:
        first, last, window = plan, positions, get(record, WINDOW)
        for i in range(rows):
            put(first, i, max(0, get(positions, i) - window + 1) if window > 0 else 0)
    put(record, ROWS, rows)
    put(record, SLOTS, slots)
    put(record, FIRST, first)
    put(record, LAST, last)
    put(record, Q, memory)
    put(record, TILES, plan + 8 * rows)
    put(record, OWN, threads_own)
    put(record, OWN_SIZE, own)
    put(record, PARTS, parts)
    return parts - memory + 4 * _plan(record, threads) * queries * part_width(record)


@kernel
def place_queries(record, q):
    """Copies q float32 [rows, heads, key_width] to where the tiles read it."""
    rows, heads, kv_heads = get(record, ROWS), get(record, HEADS), get(record, KV_HEADS)
    group, width = heads // kv_heads, get(record, KEY_WIDTH)
    for row in range(rows):
        for head in range(heads):
            out = query_at(record, head // group, row) + 4 * (head % group) * padded(width)
            zero_row(out + 4 * (padded(width) - 8), 8)
            copy_row(q + 4 * (row * heads + head) * width, out, width)


@kernel
def _block(element, record, tile, head, block, line, part):
    """The parts of all queries of a tile for one block; `line` is room for their scores. element: a literal size.

    The keys of the block behind it are asked for, where the tile has one.
    """
    literally(element)
    group = get(record, HEADS) // get(record, KV_HEADS)
    row, count = get(tile, TILE_ROW), get(tile, TILE_ROWS)
    key_width, value_width = padded(get(record, KEY_WIDTH)), padded(get(record, VALUE_WIDTH))
    slot, q = get(get(record, SLOTS), row), query_at(record, head, row)
    k, v = key_at(record, slot, head, block * BLOCK), value_at(record, slot, head, block * BLOCK)
    first, last, start = get(record, FIRST), get(record, LAST), block * BLOCK
    low, high = BLOCK, 0
    for i in range(row, row + count):
        low = min(low, max(0, get(first, i) - start))
        high = max(high, min(BLOCK, get(last, i) + 1 - start))
    queries, width = count * group, part_width(record)
    next_k = key_at(record, slot, head, (block + 1) * BLOCK) if block + 1 < get(tile, TILE_END) else k
    k_row, v_row = get(record, K_ROW), get(record, V_ROW)
    scores(element, q, queries, 4 * key_width, k, k_row, low, high, key_width, line, next_k, v, v_row, value_width)
    scale, softcap = real(record, SCALE), real(record, SOFTCAP)
    begin, end = low // LANES, (high + LANES - 1) // LANES
    for n in range(queries):
        i, most = row + n // group, part + 4 * (n * width + value_width)
        own_low, own_high = max(0, get(first, i) - start), min(BLOCK, get(last, i) + 1 - start)
        bound(line + 4 * BLOCK * n, own_low, own_high, begin, end, scale, softcap, most)
    for n in range(queries):
        most = part + 4 * (n * width + value_width)
        weigh(line + 4 * BLOCK * n, begin, end, most, most + 4)
    mix(element, line, queries, v, v_row, low, high, value_width, part, 4 * width)


@callback
def _block_of_halves(record, tile, head, block, line, part):
    _block(2, record, tile, head, block, line, part)


@callback
def _block_of_floats(record, tile, head, block, line, part):
    _block(4, record, tile, head, block, line, part)


KERNELS = {2: _block_of_halves, 4: _block_of_floats}  # by the bytes of a cached number


@kernel
def _merge(record, tile, block, queries, part, so_far):
    """Adds a block's parts to what the queries that see it have so far."""
    group = get(record, HEADS) // get(record, KV_HEADS)
    value_width, width = padded(get(record, VALUE_WIDTH)), part_width(record)
    first, last, row = get(record, FIRST), get(record, LAST), get(tile, TILE_ROW)
    for n in range(queries):
        i = row + n // group
        if get(first, i) < (block + 1) * BLOCK and get(last, i) >= block * BLOCK:
            a, b = so_far + 4 * n * width, part + 4 * n * width
            most, part_most = a + 4 * value_width, b + 4 * value_width
            merge_row(a, most, most + 4, b, part_most, part_most + 4, value_width)


@kernel
def _finish(record, tile, head, queries, so_far):
    """Writes the mixtures over the sums of weights, through the gate where there is one."""
    heads, value_width, width = get(record, HEADS), get(record, VALUE_WIDTH), part_width(record)
    group, row = heads // get(record, KV_HEADS), get(tile, TILE_ROW)
    for n in range(queries):
        i, h, source = row + n // group, head * group + n % group, so_far + 4 * n * width
        out = get(record, OUT) + 4 * (i * get(record, OUT_ROW) + h * get(record, OUT_HEAD))
        divide_row(source, load(source + 4 * (padded(value_width) + 1)), out, value_width)
        gate = get(record, GATE)
        if gate != 0:
            sigmoid_row(gate + 4 * (i * heads + h) * get(record, GATE_HEAD), out, out, value_width)


@kernel
def _begin(so_far, queries, width):
    zero_row(so_far, queries * width)
    for n in range(queries):
        store(so_far + 4 * ((n + 1) * width - 8), NOTHING)


@kernel
def _item(record, tile, head, block):
    """The number of a block of one kv head among those of all split tiles: those of a head follow each other."""
    start = get(tile, TILE_BLOCK)
    return get(tile, TILE_BEFORE) * get(record, KV_HEADS) + head * (get(tile, TILE_END) - start) + block - start


@kernel
def _tiles(record, thread, threads):
    """A thread's share of the tiles, or of their blocks when they are split."""
    kv_heads, tiles = get(record, KV_HEADS), get(record, TILES)
    group = get(record, HEADS) // kv_heads
    width, most = part_width(record), max(QUERIES, group)
    line = get(record, OWN) + thread * get(record, OWN_SIZE)
    part = line + 4 * most * BLOCK
    so_far = part + 4 * most * width
    if get(record, SPLIT) == 0:
        for item in range(thread, get(record, TILE_COUNT) * kv_heads, threads):
            tile, head = tiles + item // kv_heads * 8 * TILE_FIELDS, item % kv_heads
            queries = get(tile, TILE_ROWS) * group
            _begin(so_far, queries, width)
            for block in range(get(tile, TILE_BLOCK), get(tile, TILE_END)):
                call_address(get(record, KERNEL), (record, tile, head, block, line, part))
                _merge(record, tile, block, queries, part, so_far)
            _finish(record, tile, head, queries, so_far)
        return
    begin, end = share(get(record, SPLIT), 1, thread, threads)
    for t in range(get(record, TILE_COUNT)):
        tile = tiles + t * 8 * TILE_FIELDS
        for head in range(kv_heads):
            for block in range(get(tile, TILE_BLOCK), get(tile, TILE_END)):
                item = _item(record, tile, head, block)
                if begin <= item < end:
                    part = get(record, PARTS) + 4 * item * most * width
                    call_address(get(record, KERNEL), (record, tile, head, block, line, part))


@kernel
def _merged(record, thread, threads):
    """After `_tiles` of every thread, when they were split: the blocks of each tile put together."""
    kv_heads, tiles = get(record, KV_HEADS), get(record, TILES)
    group = get(record, HEADS) // kv_heads
    width, most = part_width(record), max(QUERIES, group)
    so_far = get(record, OWN) + thread * get(record, OWN_SIZE)
    for item in range(thread, get(record, TILE_COUNT) * kv_heads, threads):
        tile, head = tiles + item // kv_heads * 8 * TILE_FIELDS, item % kv_heads
        queries = get(tile, TILE_ROWS) * group
        _begin(so_far, queries, width)
        for block in range(get(tile, TILE_BLOCK), get(tile, TILE_END)):
            item = _item(record, tile, head, block)
            _merge(record, tile, block, queries, get(record, PARTS) + 4 * item * most * width, so_far)
        _finish(record, tile, head, queries, so_far)


@kernel
def mixtures(record, team, thread, threads):
    """All mixtures of the rows, by all threads; what others wrote to the cache must have been waited for."""
    _tiles(record, thread, threads)
    if get(record, SPLIT) != 0:
        wait(team, threads)
        _merged(record, thread, threads)
