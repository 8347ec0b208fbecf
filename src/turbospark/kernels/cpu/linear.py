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
from turbospark.kernels.cpu.codes import CODES
from turbospark.kernels.cpu.compile import Callback, call_address, callback, kernel, load_int
from turbospark.kernels.cpu.floats import ELEMENTS, float_product
from turbospark.kernels.cpu.operands import FIELDS
from turbospark.kernels.cpu.product import product
from turbospark.quant.tensor import QTensor


def _by_quants(format: str) -> Callback:
    @callback
    def rows(weight, x, xq, rows, y, y_stride, start, stop, add):
        product(format, weight, x, xq, rows, y, y_stride, start, stop, add)

    return rows


def _by_floats(format: str) -> Callback:
    @callback
    def rows(weight, x, xq, rows, y, y_stride, start, stop, add):
        float_product(format, weight, x, xq, rows, y, y_stride, start, stop, add)

    return rows


FLOATS = {name: _by_floats(name) for name in ELEMENTS}
EXACT = {name: _by_floats(name) for name in CODES}
KERNELS = FLOATS | {name: _by_quants(name) for name in CODES}


@kernel
def rows(weight, x, xq, rows, y, y_stride, start, stop, add):
    """y[m, start..stop-1] for all rows m; see the module's text."""
    call_address(load_int(weight), (weight, x, xq, rows, y, y_stride, start, stop, add))


class Weight:
    """A matrix [N, K] as the kernels take it; keeps the tensor's memory. `address` is valid as long as this lives.

    `exact`: activations stay float32 whatever the format.
    """

    def __init__(self, tensor: QTensor, exact: bool = False):
        quant.check(tensor)
        self.tensor = tensor
        self.shape = tensor.shape
        self.integer = not exact and tensor.format in CODES
        kernels = EXACT | FLOATS if exact else KERNELS
        data = tensor.data
        fields = {
            "kernel": kernels[tensor.format].address,
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
