"""The crossings from Python: each sets a record's fields from arrays and runs a region.

x, y, out and the like are float32 arrays, contiguous; positions and slots addresses of int64 [rows]. Those that plan
their memory return 0, or the bytes they need when `size` is too small, and then have done nothing.
"""

from __future__ import annotations

from turbospark.kernels.cpu import (
    attend,
    attention,
    block,
    delta,
    experts,
    feed_forward,
    heads,
    latent,
    projection,
    scoring,
    trunk,
)
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.elementwise import copy_row
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
    """Attention with its projections."""
    rows, columns = x.shape
    working = memory + attention.plan_bytes(rows)
    if working - memory > size:
        return working - memory
    at = x.ctypes.data, out.ctypes.data
    needed = (
        working
        - memory
        + _set_branch(record, cache, positions, slots, 0, 0, rows, columns, at, memory, working, threads)
    )
    if needed > size:
        return needed
    launch(team, region, record)
    return 0


@kernel
def _set_branch(record, cache, positions, slots, first, last, rows, columns, at, plan, memory, threads):
    """Sets the fields of a branch from `at`, (x, out); returns the bytes it will use at `memory`.

    first, last: what each row sees, see `attention.begin`.

    Memory: inputs of a projection, projected rows, mixtures, attention's own.
    """
    qkv, middle, o = get(record, attend.QKV), get(record, attend.HEADS), get(record, attend.OUTPUT)
    mixed, heads_ = get(o, projection.COLUMNS), get(middle, attention.HEADS)
    keys = get(middle, attention.KV_HEADS) * get(middle, attention.KEY_WIDTH)
    queries = heads_ * get(middle, heads.QUERY_HEAD)
    q = memory + max(
        input_bytes(rows, columns, threads), input_bytes(rows, mixed, threads) + aligned(4 * rows * columns)
    )
    mix = q + aligned(4 * rows * (queries + 2 * keys))
    rest = mix + aligned(4 * rows * mixed)
    for part in (qkv, o):
        put(part, ROWS, rows)
        put(part, X, at[0])
        put(part, MEMORY, memory)
    put(qkv, OUT, q)
    _between(middle, positions, q, q + 4 * rows * queries, q + 4 * rows * (queries + keys), mix)
    put(o, Y, mix)
    put(o, OUT, at[1])
    return rest - memory + attention.begin(middle, cache, rows, slots, positions, first, last, plan, rest, threads)


@kernel
def enter_trunk(region, team, threads, record, memory, size, caches, positions, slots, taps, x, out):
    """All layers, in place in `out`. caches: int64 [layers], layouts; taps likewise, where a copy goes, or 0."""
    rows, columns = x.shape
    layers, plan = get(record, trunk.LAYERS), attention.plan_bytes(rows)
    working = memory + layers * plan
    if working - memory > size:
        return working - memory
    stream, most = out.ctypes.data, 0
    at = stream, stream
    for i in range(layers):
        layer = record + 8 * (len(trunk.FIELDS) + len(trunk.LAYER_FIELDS) * i)
        branch, feed = get(layer, trunk.ATTENTION), get(layer, trunk.FEED_FORWARD)
        own_plan, cache = memory + i * plan, get(caches, i)
        used = _set_branch(branch, cache, positions, slots, 0, 0, rows, columns, at, own_plan, working, threads)
        put(feed, ROWS, rows)
        put(feed, X, stream)
        put(feed, OUT, stream)
        put(feed, MEMORY, working)
        inner = feed_forward.feed_forward_bytes(rows, columns, get(feed, feed_forward.WIDTH), threads)
        most = max(most, used, inner)
        put(layer, trunk.TAP, get(taps, i))
    if working - memory + most > size:
        return working - memory + most
    put(record, trunk.STREAM, stream)
    put(record, trunk.COUNT, rows * columns)
    copy_row(x.ctypes.data, stream, rows * columns)
    launch(team, region, record)
    return 0


@kernel
def enter_block(region, team, threads, record, memory, size, caches, positions, slots, spans, since, x, out):
    """A drafter's block. caches: int64 [layers], layouts; since: int64 [spans], the first position that each may see.

    Memory: the sublayers' plans, the place of each row in its block, what the rows of each layer see, the stream and
    what becomes of it.
    """
    rows, columns = x.shape
    sublayers, plan, line = get(record, block.SUBLAYERS), attention.plan_bytes(rows), aligned(4 * rows * columns)
    inside = memory + sublayers * plan
    seen = inside + 8 * rows
    stream = aligned(seen + 16 * rows * sublayers)
    normed, mixed, result, kernels = stream + line, stream + 2 * line, stream + 3 * line, stream + 4 * line
    outputs = 0
    for i in range(sublayers):
        sublayer = block.sublayer_at(record, i)
        outputs = max(outputs, 2 * get(sublayer, block.TAPS) * columns // max(1, get(sublayer, block.WIDTH)))
    working = kernels + aligned(4 * rows * outputs)
    if working - memory > size:
        return working - memory
    for i in range(len(spans)):
        for row in range(spans[i, 1], spans[i, 2]):
            put(inside, row, row - spans[i, 1])
    most, attention_layer = input_bytes(rows, columns, threads), 0
    for i in range(sublayers):
        sublayer = block.sublayer_at(record, i)
        inner, projecting = get(sublayer, block.RECORD), get(sublayer, block.PROJECTION)
        source = normed
        if projecting != 0:
            source = mixed
            put(projecting, ROWS, rows)
            put(projecting, X, normed)
            put(projecting, OUT, kernels)
            put(projecting, MEMORY, working)
        if get(sublayer, block.ATTENDS) != 0:
            first, last, at = seen + 16 * rows * i, seen + 16 * rows * i + 8 * rows, (source, result)
            for k in range(len(spans)):
                block.see(sublayer, positions, spans[k, 1], spans[k, 2], since[k], first, last)
            cache, own_plan = get(caches, attention_layer), memory + i * plan
            used = _set_branch(
                inner, cache, positions, slots, first, last, rows, columns, at, own_plan, working, threads
            )
            o = get(inner, attend.OUTPUT)
            put(o, X, get(o, Y))
            attention_layer += 1
        else:
            put(inner, ROWS, rows)
            put(inner, X, source)
            put(inner, OUT, result)
            put(inner, MEMORY, working)
            used = feed_forward.feed_forward_bytes(rows, columns, get(inner, feed_forward.WIDTH), threads)
        most = max(most, used)
    if working - memory + most > size:
        return working - memory + most
    put(record, block.ROWS, rows)
    put(record, block.COLUMNS, columns)
    put(record, block.INSIDE, inside)
    put(record, block.STREAM, stream)
    put(record, block.NORMED, normed)
    put(record, block.MIXED, mixed)
    put(record, block.RESULT, result)
    put(record, block.OUT, out.ctypes.data)
    put(record, block.KERNELS, kernels)
    copy_row(x.ctypes.data, stream, rows * columns)
    launch(team, region, record)
    return 0


@kernel
def enter_remember(region, team, threads, record, memory, size, caches, positions, slots, x):
    """Keys and values of rows, for all layers. caches: int64 [layers], layouts.

    Memory: the projections' inputs, what is read, its keys and values layer by layer, a key for each thread.
    """
    rows, columns = x.shape
    fc, group, layers = get(record, block.FC), get(record, block.KEYS), get(record, block.LAYERS)
    hidden = get(group, projection.COLUMNS)
    read = memory + max(input_bytes(rows, columns, threads), input_bytes(rows, hidden, threads))
    keys = read + aligned(4 * rows * hidden)
    own, own_size = keys, 0
    for i in range(layers):
        middle = get(record, len(block.READING_FIELDS) + i)
        width = get(middle, attention.KEY_WIDTH)
        own += 8 * rows * get(middle, attention.KV_HEADS) * width
        own_size = max(own_size, aligned(4 * attention.padded(width)))
    own = aligned(own)
    if own + threads * own_size - memory > size:
        return own + threads * own_size - memory
    for part in (fc, group):
        put(part, ROWS, rows)
        put(part, MEMORY, memory)
    put(fc, X, x.ctypes.data)
    put(fc, OUT, read)
    put(group, X, read)
    put(group, OUT, keys)
    for layer in range(layers):
        middle, cache = get(record, len(block.READING_FIELDS) + layer), get(caches, layer)
        for i in range(attention.KERNEL, attention.CAPACITY + 1):
            put(middle, i, get(cache, i - attention.KERNEL))
        half = 4 * rows * get(middle, attention.KV_HEADS) * get(middle, attention.KEY_WIDTH)
        put(middle, attention.ROWS, rows)
        put(middle, attention.SLOTS, slots)
        put(middle, attention.OWN, own)
        put(middle, attention.OWN_SIZE, own_size)
        put(middle, heads.POSITIONS, positions)
        put(middle, heads.KEYS, keys)
        put(middle, heads.VALUES, keys + half)
        keys += 2 * half
    launch(team, region, record)
    return 0


@kernel
def enter_candidates(region, team, threads, record, memory, size, x, found, scores, weights):
    """A drafter's candidates; found int64 and scores [rows, count], weights [rows, rank].

    Memory: the projections' inputs, their outputs and the copy's, all threads' lists of each row, each thread's own.
    """
    rows, columns = x.shape
    group, coarse, near = get(record, scoring.PROJECTION), get(record, scoring.COARSE), get(record, scoring.NEAR)
    rank, outputs = get(record, scoring.RANK), get(record, scoring.OUTPUTS)
    weighed = memory + input_bytes(rows, columns, threads)
    scored = aligned(weighed + 4 * rows * rank)
    lists = scored + aligned(4 * rows * outputs)
    own = lists + rows * threads * scoring.list_bytes(near)
    end = own + threads * scoring.own_bytes(columns, near)
    if end - memory > size:
        return end - memory
    for part, out in ((group, weighed), (coarse, scored)):
        put(part, ROWS, rows)
        put(part, MEMORY, memory)
        put(part, X, x.ctypes.data)
        put(part, OUT, out)
    put(record, scoring.COUNT, found.shape[1])
    put(record, scoring.ROWS, rows)
    put(record, scoring.COLUMNS, columns)
    put(record, scoring.X, x.ctypes.data)
    put(record, scoring.WEIGHED, weighed)
    put(record, scoring.SCORED, scored)
    put(record, scoring.FOUND, found.ctypes.data)
    put(record, scoring.SCORES, scores.ctypes.data)
    put(record, scoring.WEIGHTS, weights.ctypes.data)
    put(record, scoring.LISTS, lists)
    put(record, scoring.OWN, own)
    launch(team, region, record)
    return 0


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
    plan = attention.plan_bytes(len(q))
    if plan > size:
        return plan
    needed = plan + attention.begin(record, cache, len(q), slots, positions, 0, 0, memory, memory + plan, threads)
    if needed > size:
        return needed
    _between(record, positions, q.ctypes.data, k.ctypes.data, v.ctypes.data, out.ctypes.data)
    launch(team, region, record)
    return 0


@kernel
def enter_attention(region, team, threads, record, memory, size, cache, q, slots, first, last, out):
    """Attention alone; q float32 [rows, heads, key_width], first and last the positions each row sees."""
    rows, since, until = len(slots), first.ctypes.data, last.ctypes.data
    plan = attention.plan_bytes(rows)
    if plan > size:
        return plan
    at = slots.ctypes.data
    needed = plan + attention.begin(record, cache, rows, at, until, since, until, memory, memory + plan, threads)
    if needed > size:
        return needed
    attention.place_queries(record, q.ctypes.data)
    put(record, attention.OUT, out.ctypes.data)
    launch(team, region, record)
    return 0


@kernel
def enter_latent(region, team, threads, record, memory, size, cache, positions, slots, q, row, out):
    """Latent attention between its projections. Memory: a plan, inputs of the products of heads, attention's own."""
    rows, count = len(q), get(record, attention.HEADS)
    inputs = memory + attention.plan_bytes(rows)
    rest = inputs + count * max(
        latent.head_bytes(rows, get(record, latent.NOPE)), latent.head_bytes(rows, get(record, latent.LATENT))
    )
    if rest - memory > size:
        return rest - memory
    needed = rest - memory + attention.begin(record, cache, rows, slots, positions, 0, 0, memory, rest, threads)
    if needed > size:
        return needed
    put(record, latent.INPUTS, inputs)
    put(record, latent.QUERIES, q.ctypes.data)
    put(record, latent.ROW, row.ctypes.data)
    put(record, latent.POSITIONS, positions)
    put(record, latent.RESULT, out.ctypes.data)
    # the mixtures are v_up's inputs: those of a head lie behind each other
    put(record, attention.OUT, inputs)
    put(record, attention.OUT_HEAD, latent.head_bytes(rows, get(record, latent.LATENT)) // 4)
    launch(team, region, record)
    return 0


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
def enter_experts(region, team, threads, record, memory, size, base, x, ids, weights, out, begin, last):
    """The routed experts that are taken; base 0 or the address of what they are added to.

    Several calls with the same memory and arrays make one forward: begin is 1 in the first, last in the last one.
    """
    put(record, experts.LAST, last)
    if begin == 0:
        launch(team, region, record)
        return 0
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
