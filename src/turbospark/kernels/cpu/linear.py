"""linear: y = x W^T for weights in their stored blocks.

From Python: `weight = prepare(tensor)`, `weight.product(x)`.

In a kernel (numba, addresses and sizes int64):
    quantise(x, rows, columns, x_stride, out, first, stop)   activations, once for all matrices that read them
    rows(weight, x, xq, rows, y, y_stride, start, stop, add)
`weight` is `Weight.address`; x float32 [rows, columns] and its quantised copy xq (only the one that the weight needs is
read: `Weight.integer`); y float32 whose element (m, n) lies at y + 4 * (m * y_stride + n); outputs start..stop-1 are
written, or added to when `add` is not 0. Any split of the outputs, and any number of rows, gives the same bits.
"""

from __future__ import annotations

import numpy as np
from ml_dtypes import bfloat16

from turbospark import quant
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.activations import quantise, quantised_bytes
from turbospark.kernels.cpu.codes import CODES
from turbospark.kernels.cpu.compile import Callback, call_address, callback, kernel, load_int
from turbospark.kernels.cpu.floats import ELEMENTS, float_product
from turbospark.kernels.cpu.operands import FIELDS
from turbospark.kernels.cpu.product import product
from turbospark.quant.tensor import QTensor

STEP = 16  # outputs are shared out in whole steps
TILE_BYTES = 4 << 20  # of the float32 copy of some rows, in formats without a kernel of their own


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


@callback
def _product(record, team, thread, threads_):
    """A region: the record holds weight, whether it is integer, columns, x, xq, rows, y, outputs, add."""
    weight, integer, columns = load_int(record), load_int(record + 8), load_int(record + 16)
    x, xq, count = load_int(record + 24), load_int(record + 32), load_int(record + 40)
    y, outputs, add = load_int(record + 48), load_int(record + 56), load_int(record + 64)
    if integer != 0:
        quantise(x, count, columns, columns, xq, count * thread // threads_, count * (thread + 1) // threads_)
        threads.wait(team, threads_)
    steps = (outputs + STEP - 1) // STEP
    start, stop = steps * thread // threads_ * STEP, steps * (thread + 1) // threads_ * STEP
    rows(weight, x, xq, count, y, outputs, start, min(stop, outputs), add)


class Weight:
    """A matrix [N, K] as the kernels take it; keeps the tensor's memory. `address` is valid as long as this lives.

    `exact`: activations stay float32 whatever the format. Raises `unsupported_format` where `native` is not true.
    """

    def __init__(self, tensor: QTensor, exact: bool = False):
        quant.check(tensor)
        if not native(tensor):
            raise TurbosparkError("unsupported_format", f"{tensor.name}: no kernel multiplies {tensor.format} directly")
        self.tensor = tensor
        self.shape = tensor.shape
        self.integer = not exact and tensor.format in CODES
        kernels = EXACT | FLOATS if exact else KERNELS
        fields = {
            "kernel": kernels[tensor.format].address,
            "data": tensor.data.ctypes.data,
            "rows": self.shape[0],
            "columns": self.shape[1],
            "stride": tensor.data.strides[0],
            "scales": _address(tensor.scales),
            "biases": _address(tensor.biases),
            "integer": self.integer,
        }
        self._fields = np.array([fields[name] for name in FIELDS], np.int64)
        self.address = self._fields.ctypes.data

    def product(self, x: np.ndarray, y: np.ndarray | None = None, add: bool = False) -> np.ndarray:
        """x float32 [M, K] by this -> [M, N], written to y or added to it, on all threads."""
        (m, k), n = x.shape, self.shape[0]
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty((m, n), np.float32) if y is None else y
        quants = buffer(quantised_bytes(m, k) if self.integer else 0)
        call = (self.address, self.integer, k, x.ctypes.data, quants.ctypes.data, m, y.ctypes.data, n, add)
        record = np.array(call, np.int64)
        threads.launch(threads.team(), _product.address, record.ctypes.data)
        return y


class Tiles:
    """A matrix [N, K] of a format without a kernel: some rows at a time are decoded, then multiplied as float32."""

    integer = False

    def __init__(self, tensor: QTensor):
        quant.check(tensor)
        self.tensor, self.shape = tensor, tensor.shape

    def product(self, x: np.ndarray, y: np.ndarray | None = None, add: bool = False) -> np.ndarray:
        """As `Weight.product`."""
        n, k = self.shape
        y = np.empty((len(x), n), np.float32) if y is None else y
        step = max(STEP, TILE_BYTES // (4 * k))
        for start in range(0, n, step):
            tile = quant.decode_rows(self.tensor, start, min(n, start + step))
            part = Weight(QTensor(self.tensor.name, "F32", tile.shape, tile.view(np.uint8))).product(x)
            if add:
                y[:, start : start + step] += part
            else:
                y[:, start : start + step] = part
        return y


def prepare(tensor: QTensor, exact: bool = False) -> Weight | Tiles:
    """A matrix ready to multiply, in any format."""
    return Weight(tensor, exact) if native(tensor) else Tiles(tensor)


def native(tensor: QTensor) -> bool:
    """Whether a kernel reads this matrix as it is stored: its format, its companions in BF16, its rows whole."""
    apart = [part for part in (tensor.scales, tensor.biases) if part is not None]
    return (
        tensor.format in KERNELS
        and len(tensor.shape) == 2
        and tensor.data.strides[1] == 1
        and all(part.dtype == bfloat16 and part.flags.c_contiguous for part in apart)
    )


def _address(part: np.ndarray | None) -> int:
    return 0 if part is None else part.ctypes.data


def buffer(size: int) -> np.ndarray:
    """Bytes at an address that is a multiple of 64."""
    memory = np.empty(size + 64, np.uint8)
    return memory[-memory.ctypes.data % 64 :][:size]


def quantised(x: np.ndarray) -> np.ndarray:
    """The quantised copy of x float32 [M, K], contiguous, as the kernels read it."""
    m, k = x.shape
    copy = buffer(quantised_bytes(m, k))
    quantise(x.ctypes.data, m, k, k, copy.ctypes.data, 0, m)
    return copy
