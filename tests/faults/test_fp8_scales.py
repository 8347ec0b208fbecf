"""FP8 weights in a model folder: where their scales may lie, what they may be, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import turbospark
from tests.tiny.deepseek2 import V3, weights, write_hf
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.kernels.reference import ReferenceKernels
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights

SHAPE, BLOCKS = (1000, 130), (8, 2)  # of 128 x 128, partial at both edges
CODES = np.random.default_rng(0).standard_normal(SHAPE).astype(ml_dtypes.float8_e4m3fn)


def stored(tmp_path: Path, **tensors: np.ndarray) -> np.ndarray:
    """The values of "w.weight", read as a layer's weight out of a folder with these tensors of w."""
    named = {f"w.{name}": values for name, values in tensors.items()}
    checkpoint = open_checkpoint(write_hf_folder(tmp_path / "fp8", {}, named))
    w = Weights(checkpoint, lambda name: (name,), ReferenceKernels(), Trace(), (128, 128))
    values = w.matrix("w", *SHAPE).values()
    w.check(lambda name: False)
    return values


def by_element(scales: np.ndarray) -> np.ndarray:
    return CODES.astype(np.float32) * np.kron(scales, np.ones((128, 128), np.float32))[: SHAPE[0], : SHAPE[1]]


@pytest.mark.parametrize("suffix", ["weight_scale_inv", "weight_scale"])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_each_block_is_multiplied_by_its_scale(suffix, dtype, tmp_path):
    scales = np.random.default_rng(1).uniform(0.5, 2, BLOCKS).astype(dtype)
    values = stored(tmp_path, weight=CODES, **{suffix: scales})
    np.testing.assert_array_equal(values, by_element(scales.astype(np.float32)))


@pytest.mark.parametrize("dtype", [np.uint8, ml_dtypes.float8_e8m0fnu])
def test_exponents_are_powers_of_two(dtype, tmp_path):
    exponents = np.arange(120, 136, dtype=np.uint8).reshape(BLOCKS)
    values = stored(tmp_path, weight=CODES, weight_scale_inv=exponents.view(dtype))
    np.testing.assert_array_equal(values, by_element(np.exp2(exponents.astype(np.float32) - 127)))


def test_one_scale_serves_the_whole_matrix(tmp_path):
    values = stored(tmp_path, weight=CODES, weight_scale=np.array([0.25], np.float32))
    np.testing.assert_array_equal(values, CODES.astype(np.float32) / 4)


@pytest.mark.parametrize(
    ("extra", "code", "says"),
    [
        ({}, "missing_scale", ("w.weight", "w.weight_scale_inv")),
        ({"weight_scale_inv": np.ones((8, 1), np.float32)}, "bad_scale", ("[8, 2]", "[8, 1]")),
        ({"weight_scale_inv": np.ones((2, 8), np.float32)}, "bad_scale", ("[8, 2]", "[2, 8]")),
        ({"weight_scale_inv": np.ones(1000, np.float32)}, "bad_scale", ("[8, 2]", "[1000]")),
        ({"weight_scale_inv": np.ones(BLOCKS, np.int32)}, "bad_scale", ("weight_scale_inv", "I32")),
        (
            {"weight_scale_inv": np.ones(BLOCKS, np.float32), "input_scale": np.ones(1, np.float32)},
            "unused_tensor",
            ("w.input_scale",),
        ),
    ],
)
def test_scales_that_do_not_fit_are_refused(extra, code, says, tmp_path):
    with pytest.raises(TurbosparkError) as caught:
        stored(tmp_path, weight=CODES, **extra)
    assert caught.value.code == code
    assert all(part in caught.value.message for part in says)


def test_a_scale_beside_a_plain_weight_has_no_place(tmp_path):
    plain, scales = CODES.astype(np.float32), np.ones(BLOCKS, np.float32)
    with pytest.raises(TurbosparkError, match="weight_scale_inv"):
        stored(tmp_path, weight=plain, weight_scale_inv=scales)


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"quant_method": "awq", "bits": 4}, ("quant_method", "'awq'", "'fp8'")),
        ({"quant_method": "fp8", "weight_block_size": [128]}, ("weight_block_size", "[128]")),
        ({"quant_method": "fp8", "weight_block_size": [0, 128]}, ("weight_block_size", "[0, 128]")),
        ({"quant_method": "fp8", "weight_block_size": "128x128"}, ("weight_block_size", "'128x128'")),
        ("fp8", ("quantization_config", "'fp8'")),
    ],
)
def test_a_packing_that_is_not_read_is_refused_by_name(declared: Any, says, tmp_path):
    folder = write_hf(tmp_path / "hf", {**V3, "quantization_config": declared}, weights(V3))
    with pytest.raises(TurbosparkError) as caught:
        turbospark.load(folder)
    assert all(part in caught.value.message for part in says)
