"""The crossings from Python: each sets a record's fields from arrays and runs a region."""

from __future__ import annotations

from turbospark.kernels.cpu import attention
from turbospark.kernels.cpu.attention import GATE, GATE_HEAD, KEY_WIDTH, begin
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.heads import KEYS, POSITIONS, QUERIES, VALUES
from turbospark.kernels.cpu.record import MEMORY, OUT, ROWS, X, Y, get, put
from turbospark.kernels.cpu.threads import launch


@kernel
def enter(region, team, record, memory, x, y, out):
    """x and y float32 arrays of the same rows; out float32."""
    put(record, ROWS, len(x))
    put(record, X, x.ctypes.data)
    put(record, Y, y.ctypes.data)
    put(record, OUT, out.ctypes.data)
    put(record, MEMORY, memory)
    launch(team, region, record)


@kernel
def enter_attend(region, team, threads, record, cache, memory, size, q, k, v, positions, slots, out):
    """Attention between its projections: float32 rows, int64 positions and slots. Returns what `begin` does."""
    needed = begin(record, cache, len(positions), slots.ctypes.data, positions.ctypes.data, 0, 0, memory, size, threads)
    if needed == 0:
        put(record, QUERIES, q.ctypes.data)
        put(record, KEYS, k.ctypes.data)
        put(record, VALUES, v.ctypes.data)
        put(record, POSITIONS, positions.ctypes.data)
        put(record, attention.OUT, out.ctypes.data)
        if get(record, GATE_HEAD) != 0:
            put(record, GATE, q.ctypes.data + 4 * get(record, KEY_WIDTH))
        launch(team, region, record)
    return needed
