"""The crossings from Python: each sets a record's fields from arrays and runs a region.

x, y, out and the like are float32 arrays, contiguous; positions, slots and ids int64. Those that plan their memory
return 0, or the bytes they need when `size` is too small, and then have done nothing.
"""

from __future__ import annotations

from turbospark.kernels.cpu import attention, delta, experts, heads, latent
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.inputs import aligned
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
def enter_attend(region, team, threads, record, memory, size, cache, q, k, v, positions, slots, out):
    """Attention between its projections."""
    at = positions.ctypes.data
    needed = attention.begin(record, cache, len(positions), slots.ctypes.data, at, 0, 0, memory, size, threads)
    if needed == 0:
        put(record, heads.QUERIES, q.ctypes.data)
        put(record, heads.KEYS, k.ctypes.data)
        put(record, heads.VALUES, v.ctypes.data)
        put(record, heads.POSITIONS, at)
        put(record, attention.OUT, out.ctypes.data)
        if get(record, attention.GATE_HEAD) != 0:
            put(record, attention.GATE, q.ctypes.data + 4 * get(record, attention.KEY_WIDTH))
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
def enter_latent(region, team, threads, record, memory, size, cache, q, row, positions, slots, out):
    """Latent attention between its projections."""
    rows, at = len(positions), positions.ctypes.data
    count = get(record, attention.HEADS)
    inputs = count * max(
        latent.head_bytes(rows, get(record, latent.NOPE)), latent.head_bytes(rows, get(record, latent.LATENT))
    )
    left = size - inputs
    needed = attention.begin(record, cache, rows, slots.ctypes.data, at, 0, 0, memory + inputs, left, threads)
    if needed > 0:
        return needed + inputs
    put(record, latent.INPUTS, memory)
    put(record, latent.QUERIES, q.ctypes.data)
    put(record, latent.ROW, row.ctypes.data)
    put(record, latent.POSITIONS, at)
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
