"""Single operations on rows: x and out float32 [rows, n], contiguous, and one row after the other."""

from __future__ import annotations

import numpy as np

from turbospark.kernels.cpu.attention import CAPACITY, ELEMENT, K_HEAD, K_ROW, K_SLOT, KERNEL, K
from turbospark.kernels.cpu.compile import kernel
from turbospark.kernels.cpu.elementwise import add_scaled_row, cache_row, copy_row, gate_row, sigmoid_row, softcap_row
from turbospark.kernels.cpu.largest import keep_largest
from turbospark.kernels.cpu.norms import l2_row, rms_row
from turbospark.kernels.cpu.record import get
from turbospark.kernels.cpu.rotation import rotate_row


@kernel
def norm(x, out, weight, eps):
    """RMS norm; weight is an address, or 0."""
    rows, n = x.shape
    for i in range(rows):
        rms_row(x.ctypes.data + 4 * i * n, weight, eps, out.ctypes.data + 4 * i * n, n)


@kernel
def l2norm(x, out, eps):
    rows, n = x.shape
    for i in range(rows):
        l2_row(x.ctypes.data + 4 * i * n, eps, np.float32(1), out.ctypes.data + 4 * i * n, n)


@kernel
def rope(x, out, heads, positions, cos, sin, pairs, interleaved):
    """`heads` rows of each position; cos and sin are addresses of tables [positions, pairs]."""
    rows, n = x.shape
    for i in range(rows):
        at, angles = out.ctypes.data + 4 * i * n, 4 * positions[i // heads] * pairs
        copy_row(x.ctypes.data + 4 * i * n, at, n)
        rotate_row(at, cos + angles, sin + angles, pairs, interleaved)


@kernel
def gate(x, out, activation, up):
    """act(x) * up."""
    gate_row(activation, x.ctypes.data, up.ctypes.data, out.ctypes.data, x.size)


@kernel
def sigmoid(x, out):
    sigmoid_row(x.ctypes.data, 0, out.ctypes.data, x.size)


@kernel
def softcap(x, out, cap):
    softcap_row(x.ctypes.data, cap, out.ctypes.data, x.size)


@kernel
def add_scaled(x, out, scale):
    """out + x * scale, as routed experts are added."""
    add_scaled_row(x.ctypes.data, scale, out.ctypes.data, x.size)


@kernel
def store(cache, values, heads, positions, slots):
    """values [rows * heads, width] to where their positions lie; cache is the address of attention.CACHE_FIELDS."""
    width = values.shape[1]
    for i in range(len(values)):
        row, head = i // heads, i % heads
        place = positions[row] % get(cache, CAPACITY - KERNEL) * get(cache, K_ROW - KERNEL)
        at = get(cache, K - KERNEL) + slots[row] * get(cache, K_SLOT - KERNEL) + head * get(cache, K_HEAD - KERNEL)
        cache_row(get(cache, ELEMENT - KERNEL), values.ctypes.data + 4 * i * width, at + place, width)


@kernel
def finite(bits, out):
    """Which rows of float32, seen as int32 [rows, n], have no element whose exponent is all ones."""
    rows, n = bits.shape
    for i in range(rows):
        bad = np.int32(0)
        for k in range(n):
            bad |= np.int32((bits[i, k] & 0x7F800000) == 0x7F800000)
        out[i] = bad == 0


@kernel
def best(x, out, values):
    """Indices of the largest elements of each row, best first, of equal ones the lowest first. values: their room."""
    rows, n = x.shape
    count = out.shape[1]
    for i in range(rows):
        keep_largest(x.ctypes.data + 4 * i * n, 0, n, values.ctypes.data, out.ctypes.data + 8 * i * count, count)
