"""The crossings from Python: each sets a record's fields from arrays and runs a region.

x, y, out and the like are float32 arrays, contiguous; positions and slots addresses of int64 [rows]. Those that plan
their memory return 0, or the bytes they need when `size` is too small, and then have done nothing.
"""

from __future__ import annotations

from turbospark.kernels.cpu import attend, attention, delta, experts, heads, latent, projection
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.inputs import aligned, input_bytes
from turbospark.kernels.cpu.record import MEMORY, OUT, ROWS, X, Y, get, put
from turbospark.kernels.cpu.threads import launch


@kernel
def enter(region, team, record, memory, x, y, out):
    """x and y have the same rows."""
    put(record, ROWS, len(x))
    put(record, X, x.ctypes.data)
    put(record, Y, y.ctypes.data)
    put(record, OUT, out.ctypes.data)
    put(record, MEMORY, memory)
    launch(team, region, record)


@kernel
def enter_branch(region, team, threads, record, memory, size, cache, positions, slots, x, out):
    """Attention with its projections. Memory: inputs of a projection, projected rows, mixtures, attention's own."""
    rows, columns = x.shape
    qkv, middle, o = get(record, attend.QKV), get(record, attend.HEADS), get(record, attend.OUTPUT)
    mixed, heads_ = get(o, projection.COLUMNS), get(middle, attention.HEADS)
    keys = get(middle, attention.KV_HEADS) * get(middle, attention.KEY_WIDTH)
    queries = heads_ * get(middle, heads.QUERY_HEAD)
    q = memory + max(
        input_bytes(rows, columns, threads), input_bytes(rows, mixed, threads) + aligned(4 * rows * columns)
    )
    mix = q + aligned(4 * rows * (queries + 2 * keys))
    rest = mix + aligned(4 * rows * mixed)
    left = size - (rest - memory)
    needed = attention.begin(middle, cache, rows, slots, positions, 0, 0, rest, left, threads)
    if needed > 0:
        return needed + rest - memory
    for part in (qkv, o):
        put(part, ROWS, rows)
        put(part, X, x.ctypes.data)
        put(part, MEMORY, memory)
    put(qkv, OUT, q)
    _between(middle, positions, q, q + 4 * rows * queries, q + 4 * rows * (queries + keys), mix)
    put(o, Y, mix)
    put(o, OUT, out.ctypes.data)
    launch(team, region, record)
    return needed


@kernel
def _between(record, positions, q, k, v, out):
    """Where attention finds projected rows and puts its mixtures."""
    put(record, heads.QUERIES, q)
    put(record, heads.KEYS, k)
    put(record, heads.VALUES, v)
    put(record, heads.POSITIONS, positions)
    put(record, attention.OUT, out)
    if get(record, attention.GATE_HEAD) != 0:
        put(record, attention.GATE, q + 4 * get(record, attention.KEY_WIDTH))


@kernel
def enter_attend(region, team, threads, record, memory, size, cache, positions, slots, q, k, v, out):
    """Attention between its projections."""
    needed = attention.begin(record, cache, len(q), slots, positions, 0, 0, memory, size, threads)
    if needed == 0:
        _between(record, positions, q.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data)
        launch(team, region, record)
    return needed


@kernel
def enter_attention(region, team, threads, record, memory, size, cache, q, slots, first, last, out):
    """Attention alone; q float32 [rows, heads, key_width], first and last the positions each row sees."""
    rows, all_slots = len(slots), slots.ctypes.data
    since, until = first.ctypes.data, last.ctypes.data
    needed = attention.begin(record, cache, rows, all_slots, until, since, until, memory, size, threads)
    if needed == 0:
        attention.place_queries(record, q.ctypes.data)
        put(record, attention.OUT, out.ctypes.data)
        launch(team, region, record)
    return needed


@kernel
def enter_latent(region, team, threads, record, memory, size, cache, positions, slots, q, row, out):
    """Latent attention between its projections."""
    rows = len(q)
    count = get(record, attention.HEADS)
    inputs = count * max(
        latent.head_bytes(rows, get(record, latent.NOPE)), latent.head_bytes(rows, get(record, latent.LATENT))
    )
    left = size - inputs
    needed = attention.begin(record, cache, rows, slots, positions, 0, 0, memory + inputs, left, threads)
    if needed > 0:
        return needed + inputs
    put(record, latent.INPUTS, memory)
    put(record, latent.QUERIES, q.ctypes.data)
    put(record, latent.ROW, row.ctypes.data)
    put(record, latent.POSITIONS, positions)
    put(record, latent.RESULT, out.ctypes.data)
    # the mixtures are v_up's inputs: those of a head lie behind each other
    put(record, attention.OUT, memory)
    put(record, attention.OUT_HEAD, latent.head_bytes(rows, get(record, latent.LATENT)) // 4)
    launch(team, region, record)
    return needed


@kernel
def enter_delta(region, team, threads, record, memory, size, cache, spans, qkv, z, a, b, out):
    """Gated DeltaNet between its projections."""
    delta.set_cache(record, cache, spans.ctypes.data, len(spans))
    own = delta.own_bytes(get(record, delta.KEY_WIDTH), get(record, delta.VALUE_WIDTH))
    rows, count = len(qkv), get(record, delta.VALUE_HEADS)
    mixed = memory + threads * own
    decays = aligned(mixed + 4 * rows * get(record, delta.CHANNELS))
    betas = aligned(decays + 4 * rows * count)
    needed = betas + 4 * rows * count - memory
    if needed > size:
        return needed
    put(record, delta.ROWS, rows)
    put(record, delta.QKV, qkv.ctypes.data)
    put(record, delta.Z, z.ctypes.data)
    put(record, delta.A, a.ctypes.data)
    put(record, delta.B, b.ctypes.data)
    put(record, delta.OUT, out.ctypes.data)
    put(record, delta.OWN, memory)
    put(record, delta.OWN_SIZE, own)
    put(record, delta.MIXED, mixed)
    put(record, delta.DECAYS, decays)
    put(record, delta.BETAS, betas)
    launch(team, region, record)
    return 0


@kernel
def enter_commit(region, team, record, cache, spans):
    """The commit of taped rows."""
    delta.set_cache(record, cache, spans.ctypes.data, len(spans))
    launch(team, region, record)


@kernel
def enter_experts(region, team, threads, record, memory, size, base, x, ids, weights, out):
    """Routed experts; base 0 or the address of what they are added to."""
    put(record, experts.ROWS, len(x))
    put(record, experts.USED, ids.shape[1])
    put(record, experts.X, x.ctypes.data)
    put(record, experts.IDS, ids.ctypes.data)
    put(record, experts.WEIGHTS, weights.ctypes.data)
    put(record, experts.BASE, base)
    put(record, experts.OUT, out.ctypes.data)
    needed = experts.arrange(record, memory, size)
    if needed == 0:
        launch(team, region, record)
    return needed
