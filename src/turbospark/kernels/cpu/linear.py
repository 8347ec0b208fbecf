"""linear: y = x W^T for weights in their stored blocks.

From Python: `weight = Weight(tensor)`, `linear(x, weight)`.

In a kernel (numba, addresses and sizes int64):
    quantise(x, rows, columns, x_stride, out, first, stop)   activations, once for all matrices that read them
    rows(weight, x, xq, rows, y, y_stride, start, stop, add)
`weight` is `Weight.address`; x float32 [rows, columns] and its quantised copy xq (only the one that the weight needs is
read: `Weight.integer`); y float32 whose element (m, n) lies at y + 4 * (m * y_stride + n); outputs start..stop-1 are
written, or added to when `add` is not 0. Any split of the outputs, and any number of rows, gives the same bits.
"""

from __future__ import annotations

import numpy as np

from turbospark import quant
from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.compile import Callback, call_address, callback, kernel, load_int
from turbospark.kernels.cpu.product import FIELDS, product
from turbospark.quant.tensor import QTensor


@callback
def _q8_0(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q8_0", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q4_0(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q4_0", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q4_1(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q4_1", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q4_k(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q4_K", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q5_k(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q5_K", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q6_k(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q6_K", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q5_0(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q5_0", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _q5_1(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("Q5_1", weight, x, xq, rows, y, y_stride, start, stop, add)


@callback
def _int4(weight, x, xq, rows, y, y_stride, start, stop, add):
    product("INT4", weight, x, xq, rows, y, y_stride, start, stop, add)


KERNELS: dict[str, Callback] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "INT4": _int4,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}


@kernel
def rows(weight, x, xq, rows, y, y_stride, start, stop, add):
    """y[m, start..stop-1] for all rows m; see the module's text."""
    call_address(load_int(weight), (weight, x, xq, rows, y, y_stride, start, stop, add))


class Weight:
    """A matrix [N, K] as the kernels take it; keeps the tensor's memory. `address` is valid as long as this lives."""

    def __init__(self, tensor: QTensor):
        quant.check(tensor)
        self.tensor = tensor
        self.shape = tensor.shape
        self.integer = tensor.format in KERNELS
        data = tensor.data
        fields = {
            "kernel": KERNELS[tensor.format].address,
            "data": data.ctypes.data,
            "rows": self.shape[0],
            "columns": self.shape[1],
            "stride": data.strides[0],
            "scales": _address(tensor.scales),
            "biases": _address(tensor.biases),
            "integer": self.integer,
        }
        self._fields = np.array([fields[name] for name in FIELDS], np.int64)
        self.address = self._fields.ctypes.data


def _address(part: np.ndarray | None) -> int:
    return 0 if part is None else part.ctypes.data


def quantised(x: np.ndarray) -> np.ndarray:
    """The quantised copy of x float32 [M, K], a buffer of bytes at an address that is a multiple of 64."""
    m, k = x.shape
    size = quantised_bytes(m, k)
    buffer = np.empty(size + 64, np.uint8)
    buffer = buffer[-buffer.ctypes.data % 64 :][:size]
    quantise(x.ctypes.data, m, k, k, buffer.ctypes.data, 0, m)
    return buffer


def linear(x: np.ndarray, weight: Weight, y: np.ndarray | None = None, add: bool = False) -> np.ndarray:
    """x float32 [M, K] by weight [N, K] -> [M, N], written to y or added to it."""
    x = np.ascontiguousarray(x, np.float32)
    m, n = len(x), weight.shape[0]
    if y is None:
        y = np.empty((m, n), np.float32)
    xq = quantised(x)
    rows(weight.address, x.ctypes.data, xq.ctypes.data, m, y.ctypes.data, y.shape[1], 0, n, int(add))
    return y
