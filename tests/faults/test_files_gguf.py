"""GGUF files that are wrong: faults 36 to 41. Each ends in one error, at once and without memory."""

from __future__ import annotations

import os
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.faults.refusal import refusal
from tests.tiny.gguf_file import Tensor, Text, Typed, gguf_bytes, tensor, write_gguf
from turbospark.errors import TurbosparkError
from turbospark.formats.checkpoint import PLAIN
from turbospark.formats.gguf import read_gguf
from turbospark.quant.formats import FORMATS

ONES = np.ones((2, 32), np.float32)
METADATA = {"general.architecture": "llama", "tokens": ["a", "bc"], "scores": [0.5, 1.5], "flag": True, "n": 2**32 - 1}
TENSORS = {"first": ONES, "second": ("Q8_0", ONES), "third": ("F16", ONES)}
HUGE = [2**32, 2**62, 2**63, 2**64 - 1]


def use(path: Path) -> None:
    """Everything a file can be asked for."""
    checkpoint = read_gguf(path)
    dict(checkpoint.metadata)
    for name, info in checkpoint.tensors.items():
        if info.format in FORMATS or info.format in PLAIN:
            checkpoint.open(name).data.max()


# 36: cut files


@pytest.mark.parametrize("metadata", [METADATA, {"tokens": ["a", "bc"]}])
@pytest.mark.parametrize("tensors", [TENSORS, {}])
def test_a_file_cut_at_any_byte_says_what_it_needs_and_has(tmp_path, metadata, tensors):
    whole = gguf_bytes(metadata, tensors)
    path = tmp_path / "a.gguf"
    path.write_bytes(whole)
    infos = read_gguf(path).tensors.values()
    end = max((info.offset + info.nbytes for info in infos), default=len(whole.rstrip(b"\0")))
    for size in range(1, end):
        path.write_bytes(whole[:size])
        error = refusal(path)
        assert error.code == "file_cut", size
        assert "needs" in error.message
        assert "has" in error.message
    for size in range(end, len(whole)):  # only padding is gone
        path.write_bytes(whole[:size])
        use(path)


def test_a_cut_file_names_the_tensor(tmp_path):
    whole = gguf_bytes(METADATA, TENSORS)
    path = tmp_path / "a.gguf"
    path.write_bytes(whole)
    infos = read_gguf(path).tensors.values()
    for info in infos:
        for lost in (1, info.nbytes):
            path.write_bytes(whole[: info.offset + info.nbytes - lost])
            message = refusal(path).message
            assert f"tensor '{info.name}' needs {info.nbytes} bytes" in message
            assert message.endswith(f"has {info.nbytes - lost}")


def test_an_empty_file_is_called_empty(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"")
    assert refusal(tmp_path / "a.gguf").code == "file_empty"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda path: path.unlink(), "file_missing"),
        (lambda path: (path.unlink(), os.mkfifo(path)), "not_a_file"),
        (lambda path: (path.unlink(), path.symlink_to(path)), "file_unreadable"),
    ],
)
def test_what_is_no_file_is_refused_by_name(tmp_path, change, code):
    path = write_gguf(tmp_path / "a.gguf", METADATA, TENSORS)
    change(path)
    error = refusal(path)
    assert error.code == code
    assert str(path) in error.message


@pytest.mark.parametrize("path", ["x" * 5000, "nul\0", "a/b/c.gguf", ""])
def test_a_path_that_cannot_be_is_refused(path):
    assert refusal(Path(path) / "x.gguf").code in ("file_missing", "file_unreadable")


# 37: counts and lengths


@pytest.mark.parametrize("count", HUGE)
@pytest.mark.parametrize("field", ["key_count", "tensor_count"])
def test_a_huge_count_is_refused_before_anything_is_read(tmp_path, field, count):
    error = refusal(write_gguf(tmp_path / "a.gguf", METADATA, TENSORS, **{field: count}))
    assert error.code == "file_cut"
    assert str(count) in error.message


@pytest.mark.parametrize("count", [*HUGE, 6])
@pytest.mark.parametrize("place", ["key", "name", "value", "entry"])
def test_a_huge_string_is_refused(tmp_path, place, count):
    text = Text(b"abc", count)
    metadata = {"key": [(text, 1)], "value": [("a", text)], "entry": [("a", ["x", text])]}.get(place, [])
    tensors = [(text, ONES)] if place == "name" else []
    assert refusal(write_gguf(tmp_path / "a.gguf", metadata, tensors, alignment=8)).code in ("file_cut", "bad_gguf")


@pytest.mark.parametrize("length", HUGE)
@pytest.mark.parametrize("code", range(14))
def test_a_huge_array_is_refused(tmp_path, code, length):
    value = Typed(9, struct.pack("<IQ", code, length) + bytes(64))
    assert refusal(write_gguf(tmp_path / "a.gguf", {"a": value})).code in ("file_cut", "bad_gguf")


def test_arrays_in_arrays_are_refused_at_any_depth(tmp_path):
    for depth in (1, 2, 10_000):
        value = Typed(9, struct.pack("<IQ", 9, 1) * depth + struct.pack("<IQ", 4, 0))
        error = refusal(write_gguf(tmp_path / "a.gguf", {"nested": value}))
        assert error.code == "bad_gguf"
        assert "'nested' is an array of array" in error.message


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (Typed(9, struct.pack("<IQ", 8, 2**27)), f"{2**27} entries, at most"),
        (Typed(9, struct.pack("<IQ", 6, 2**27)), f"{2**27} entries, at most"),
        (Typed(9, struct.pack("<IQ", 7, 2**30)), f"{2**30} entries, at most"),
        (Typed(9, struct.pack("<IQQ", 8, 1, 2**30)), f"{2**30 + 8} bytes, at most"),
        (Typed(8, struct.pack("<Q", 2**30)), f"{2**30} bytes, at most"),
    ],
)
def test_a_value_larger_than_any_vocabulary_is_refused_though_it_is_there(tmp_path, value, words):
    path = write_gguf(tmp_path / "a.gguf", {"a": value})
    os.truncate(path, 2**30 + 2**20)
    error = refusal(path)
    assert (error.code, words in error.message) == ("bad_gguf", True)


@pytest.mark.parametrize("code", [13, 255, 2**31, 2**32 - 1])
def test_unknown_value_types_are_named(tmp_path, code):
    alone = refusal(write_gguf(tmp_path / "a.gguf", {"key": Typed(code, bytes(64))}))
    inside = refusal(write_gguf(tmp_path / "b.gguf", {"key": Typed(9, struct.pack("<IQ", code, 1) + bytes(64))}))
    for error in (alone, inside):
        assert error.code == "bad_gguf"
        assert f"unknown type {code}" in error.message
        assert "'key'" in error.message


def test_a_bool_is_zero_or_one(tmp_path):
    for value in (Typed(7, b"\2"), Typed(9, struct.pack("<IQ", 7, 2) + b"\1\2")):
        assert "bool" in refusal(write_gguf(tmp_path / "a.gguf", {"key": value})).message


def test_a_key_that_comes_twice_is_refused(tmp_path):
    error = refusal(write_gguf(tmp_path / "a.gguf", [("general.name", "a"), ("general.name", "a")]))
    assert (error.code, "'general.name' is there twice" in error.message) == ("bad_gguf", True)


def test_a_key_has_a_name(tmp_path):
    error = refusal(write_gguf(tmp_path / "a.gguf", {"a": 1, "": 2}))
    assert (error.code, "metadata key 1 of 2 is empty" in error.message) == ("bad_gguf", True)


# 38: alignment


@pytest.mark.parametrize("alignment", [8, 16, 32, 64, 4096])
def test_alignments_of_the_specification_read(tmp_path, alignment):
    path = write_gguf(tmp_path / "a.gguf", {"general.alignment": alignment}, TENSORS, alignment=alignment)
    checkpoint = read_gguf(path)
    assert all(info.offset % alignment == 0 for info in checkpoint.tensors.values())
    assert (checkpoint.open("first").data.view("<f4") == ONES).all()
    assert (checkpoint.open("third").data.view("<f2") == ONES).all()


@pytest.mark.parametrize("alignment", [0, 1, 2, 4, 24, 48, 33, 2**31 + 8])
def test_other_alignments_are_refused_by_number(tmp_path, alignment):
    error = refusal(write_gguf(tmp_path / "a.gguf", {"general.alignment": alignment}, TENSORS))
    assert error.code == "bad_gguf"
    assert error.message.endswith(f"must be a power of two and a multiple of 8, is {alignment}")


def test_an_alignment_beyond_the_file_is_a_cut(tmp_path):
    error = refusal(write_gguf(tmp_path / "a.gguf", {"general.alignment": 2**31}, {"first": ONES}))
    assert error.code == "file_cut"
    assert f"'first' needs 256 bytes at byte {2**31}, has 0" in error.message


@pytest.mark.parametrize("value", [np.uint64(32), np.int32(32), np.uint8(32), 32.0, "32", True, [32], -32])
def test_an_alignment_of_another_type_is_refused(tmp_path, value):
    error = refusal(write_gguf(tmp_path / "a.gguf", {"general.alignment": value}, TENSORS))
    assert (error.code, "must be u32, is" in error.message) == ("bad_gguf", True)


# 39: dimensions


@pytest.mark.parametrize("dims", [(0,), (32, 0), (0, 2), (0, 0, 0, 0), (2**63, 2**63, 2**63, 0)])
def test_zero_dimensions_are_refused(tmp_path, dims):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"w": tensor("F32", ONES, dims=dims)}))
    assert (error.code, "'w'" in error.message, "0 values" in error.message) == ("bad_gguf", True, True)


@pytest.mark.parametrize("n_dims", [5, 8, 2**31, 2**32 - 1])
def test_more_than_four_dimensions_are_refused(tmp_path, n_dims):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"w": tensor("F32", ONES, n_dims=n_dims, dims=(1,) * 8)}))
    assert (error.code, f"{n_dims} dimensions" in error.message) == ("bad_gguf", True)


@pytest.mark.parametrize("dims", [(2**62, 4), (2**32, 2**32), (2**63,), (2**64 - 1,) * 4])
def test_products_that_overflow_are_refused(tmp_path, dims):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"w": tensor("F32", ONES, dims=dims)}))
    assert (error.code, "'w'" in error.message) == ("bad_gguf", True)


@pytest.mark.parametrize("dims", [(2**62,), (2**40, 2**20), (32, 3)])
def test_a_tensor_larger_than_the_file_is_a_cut(tmp_path, dims):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"w": tensor("F32", ONES, dims=dims)}))
    assert error.code == "file_cut"
    assert f"needs {4 * dims[0] * (*dims, 1)[1]} bytes" in error.message


def test_a_row_of_broken_blocks_is_refused(tmp_path):
    broken = Tensor("Q8_0", np.zeros((2, 68), np.uint8), (2, 48))
    message = refusal(write_gguf(tmp_path / "a.gguf", {}, {"w": broken})).message
    assert "rows of 48 values, Q8_0 needs a multiple of 32" in message


# 40: types and names


@pytest.mark.parametrize("code", [43, 99, 2**31, 2**32 - 1])
def test_an_unknown_tensor_type_is_refused_when_it_is_used(tmp_path, code):
    path = write_gguf(tmp_path / "a.gguf", {}, {"odd": tensor("F32", ONES, type=code), "w": ONES})
    checkpoint = read_gguf(path)
    assert checkpoint.tensors["odd"].nbytes == 256
    assert (checkpoint.open("w").data.view("<f4") == ONES).all()
    with pytest.raises(TurbosparkError) as caught:
        checkpoint.open("odd")
    assert caught.value.code == "unsupported_format"
    assert f"'odd' of {path} has format unknown type {code}" in caught.value.message
    assert {"F32", "Q4_K", "MXFP4"} <= set(caught.value.hint.replace(",", "").split())


@pytest.mark.parametrize(
    ("code", "name", "nbytes"),
    [
        (4, "Q4_2", 80),
        (5, "Q4_3", 96),
        (31, "Q4_0_4_4", 72),
        (32, "Q4_0_4_8", 72),
        (33, "Q4_0_8_8", 72),
        (36, "IQ4_NL_4_4", 72),
        (37, "IQ4_NL_4_8", 72),
        (38, "IQ4_NL_8_8", 72),
    ],
)
def test_a_removed_tensor_type_is_named_and_sized(tmp_path, code, name, nbytes):
    old = tensor("F32", np.zeros((2, 64), np.float32), type=code)
    checkpoint = read_gguf(write_gguf(tmp_path / "a.gguf", {}, {"old": old, "w": ONES}))
    assert checkpoint.tensors["old"].nbytes == nbytes
    with pytest.raises(TurbosparkError, match=f"format {name}, which is not supported"):
        checkpoint.open("old")


def test_a_tensor_name_that_comes_twice_is_refused(tmp_path):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, [("w", ONES), ("v", ONES), ("w", ONES)]))
    assert (error.code, "tensor 'w' is there twice" in error.message) == ("bad_gguf", True)


def test_a_tensor_name_is_64_bytes_at_most(tmp_path):
    read_gguf(write_gguf(tmp_path / "a.gguf", {}, {"n" * 64: ONES}))
    assert "65 bytes, at most 64" in refusal(write_gguf(tmp_path / "a.gguf", {}, {"n" * 65: ONES})).message


def test_a_tensor_that_is_not_there_is_named(tmp_path):
    with pytest.raises(TurbosparkError, match="no tensor 'absent' among its 3") as caught:
        read_gguf(write_gguf(tmp_path / "a.gguf", {}, TENSORS)).open("absent")
    assert caught.value.code == "tensor_missing"


@pytest.mark.parametrize("offset", [1, 8, 31, 2**63 + 1])
def test_an_offset_off_the_alignment_is_refused(tmp_path, offset):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"a": ONES, "w": tensor("F32", ONES, offset=offset)}))
    assert (error.code, f"'w' has offset {offset}" in error.message) == ("bad_gguf", True)


@pytest.mark.parametrize("type", [0, 99])
@pytest.mark.parametrize("offset", [512, 2**62, 2**64 - 32])
def test_an_offset_beyond_the_file_is_a_cut(tmp_path, offset, type):
    error = refusal(
        write_gguf(tmp_path / "a.gguf", {}, {"a": ONES, "w": tensor("F32", ONES, offset=offset, type=type)})
    )
    assert (error.code, "'w'" in error.message, "has 0" in error.message) == ("file_cut", True, True)


@pytest.mark.parametrize("offset", [0, 32, 224])
def test_tensors_that_overlap_are_refused(tmp_path, offset):
    error = refusal(write_gguf(tmp_path / "a.gguf", {}, {"a": ONES, "w": tensor("F32", ONES, offset=offset)}))
    assert (error.code, "'a' needs 256 bytes" in error.message) == ("bad_gguf", True)


def test_tensors_may_lie_in_any_order(tmp_path):
    pair = {"b": tensor("F32", 2 * ONES, offset=256), "a": tensor("F32", ONES, offset=0)}
    checkpoint = read_gguf(write_gguf(tmp_path / "a.gguf", {}, pair))
    assert list(checkpoint.tensors) == ["b", "a"]
    assert checkpoint.open("b").data.view("<f4")[0, 0] == 1  # as the offsets say, not the order of writing
    assert checkpoint.open("a").data.view("<f4")[0, 0] == 2


# 41: other files


@pytest.mark.parametrize(
    ("fields", "code", "words"),
    [
        ({"version": 1}, "unsupported_gguf", "version 1, versions 2 and 3"),
        ({"version": 4}, "unsupported_gguf", "version 4, versions 2 and 3"),
        ({"version": 0}, "unsupported_gguf", "version 0, versions 2 and 3"),
        ({"version": 3, "order": ">"}, "unsupported_gguf", "big-endian"),
        ({"version": 2, "order": ">"}, "unsupported_gguf", "big-endian"),
        ({"magic": b"FUGG", "order": ">"}, "unsupported_gguf", "big-endian"),
        ({"magic": b"tjgg"}, "unknown_file", "GGML model of before August 2023"),
        ({"magic": b"lmgg"}, "unknown_file", "GGML model of before August 2023"),
        ({"magic": b"PK\3\4"}, "unknown_file", "PyTorch"),
        ({"magic": b"\x80\2}q"}, "unknown_file", "pickle"),
        ({"magic": b"vers"}, "unknown_file", "git lfs pull"),
        ({"magic": b"<!DO"}, "unknown_file", "web page"),
        ({"magic": b"gguf"}, "unknown_file", "b'gguf'"),
        ({"magic": b"\0\0\0\0"}, "unknown_file", "not a GGUF file"),
    ],
)
def test_each_kind_of_other_file_has_its_own_message(tmp_path, fields, code, words):
    error = refusal(write_gguf(tmp_path / "a.gguf", METADATA, TENSORS, **fields))
    assert error.code == code
    assert words in str(error)


# anything at all


def test_a_damaged_file_opens_or_is_refused_and_nothing_else(tmp_path):
    whole = gguf_bytes(METADATA, TENSORS)
    head = len(whole) - 600
    rng = np.random.default_rng(7)
    path = tmp_path / "a.gguf"

    def verdict() -> str:
        try:
            use(path)
        except TurbosparkError as error:
            return error.code if str(error).isascii() else "not printable"
        return "read"

    verdicts: Counter[str] = Counter()
    for _ in range(600):
        data = bytearray(whole)
        for at in rng.integers(0, head, rng.integers(1, 4)):
            data[at] = rng.choice([0, 1, 9, 127, 128, 255, rng.integers(256)])
        path.write_bytes(data[: rng.integers(1, len(data) + 1)] if rng.random() < 0.3 else data)
        verdicts[verdict()] += 1
    assert set(verdicts) == {"read", "file_cut", "bad_gguf", "unsupported_gguf", "unknown_file"}
    assert verdicts["read"] > 50
