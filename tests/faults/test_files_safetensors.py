"""Safetensors headers that are wrong: fault 43. The `safetensors` package is asked for its verdict on each."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import SafetensorError, deserialize

from tests.tiny.safetensors_file import safetensors_bytes, write_safetensors
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.formats.checkpoint import PLAIN
from turbospark.formats.safetensors import BITS, read_safetensors
from turbospark.quant.formats import FORMATS

WEIGHTS = {"first": np.arange(6, dtype=np.float32).reshape(2, 3), "second": np.ones(4, np.float16)}


def entry(dtype: Any = "F32", shape: Any = (1,), offsets: Any = (0, 4), **more: Any) -> str:
    return json.dumps({"dtype": dtype, "shape": shape, "data_offsets": offsets, **more})


def ours(path: Path, data: bytes) -> str:
    """ "read", or the code of the refusal."""
    path.write_bytes(data)
    try:
        checkpoint = read_safetensors(path)
    except TurbosparkError as error:
        return error.code if error.message.isprintable() else "not printable"
    for info in checkpoint.tensors.values():
        if info.format in FORMATS or info.format in PLAIN:
            checkpoint.open(info.name).data.sum()
    return "read"


def theirs(data: bytes) -> bool:
    try:
        deserialize(data)
    except SafetensorError:
        return False
    return True


A = entry()
RIGHT = {
    "one": (f'{{"a": {A}}}', 4),
    "none": ("{}", 0),
    "spaces": (f'  {{"a": {A}}}\n\t ', 4),
    "metadata": (f'{{"__metadata__": {{"format": "pt"}}, "a": {A}}}', 4),
    "empty metadata": (f'{{"__metadata__": {{}}, "a": {A}}}', 4),
    "null metadata": (f'{{"__metadata__": null, "a": {A}}}', 4),
    "more fields": (f'{{"a": {entry(strides=[1])}}}', 4),
    "a name twice, equal entries": (f'{{"a": {A}, "a": {A}}}', 4),
    "no dimensions": (f'{{"a": {entry(shape=[])}}}', 4),
    "no values": (f'{{"a": {entry(shape=[0, 3], offsets=[0, 0])}}}', 0),
    "no values in between": (f'{{"b": {entry(offsets=[4, 8])}, "n": {entry(shape=[0], offsets=[4, 4])}, "a": {A}}}', 8),
    "empty name": (f'{{"": {A}}}', 4),
    "half bytes": (f'{{"a": {entry("F4", [2, 2], [0, 2])}}}', 2),
}
WRONG = {
    "a name twice, other offsets": (f'{{"a": {A}, "a": {entry(offsets=[4, 8])}}}', 8),
    "a field twice": ('{"a": {"dtype": "F32", "dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}', 4),
    "metadata twice": (f'{{"__metadata__": {{}}, "__metadata__": {{}}, "a": {A}}}', 4),
    "overlap": (f'{{"a": {A}, "b": {entry(offsets=[2, 6])}}}', 6),
    "same bytes": (f'{{"a": {A}, "b": {A}}}', 4),
    "inside": (f'{{"a": {entry(shape=[2], offsets=[0, 8])}, "b": {entry(offsets=[2, 6])}}}', 8),
    "gap": (f'{{"a": {A}, "b": {entry(offsets=[8, 12])}}}', 12),
    "gap before": (f'{{"a": {entry(offsets=[4, 8])}}}', 8),
    "no values in the middle of others": (f'{{"a": {A}, "n": {entry(shape=[0], offsets=[2, 2])}}}', 4),
    "trailing bytes": (f'{{"a": {A}}}', 5),
    "trailing bytes alone": ("{}", 1),
    "missing bytes": (f'{{"a": {A}}}', 3),
    "shape too small": (f'{{"a": {entry(shape=[2])}}}', 4),
    "shape too large": (f'{{"a": {entry(shape=[1], offsets=[0, 8])}}}', 8),
    "another dtype": (f'{{"a": {entry("F64")}}}', 4),
    "backwards": (f'{{"a": {entry(offsets=[4, 0])}}}', 4),
    "three offsets": (f'{{"a": {entry(offsets=[0, 4, 8])}}}', 4),
    "one offset": (f'{{"a": {entry(offsets=[4])}}}', 4),
    "negative offset": (f'{{"a": {entry(offsets=[-4, 0])}}}', 4),
    "minus zero": (f'{{"a": {A.replace("[0, 4]", "[-0, 4]")}}}', 4),
    "huge offset": (f'{{"a": {entry(offsets=[2**62, 2**62 + 4])}}}', 4),
    "offset of 65 bits": (f'{{"a": {entry(offsets=[2**64, 2**64 + 4])}}}', 4),
    "negative extent": (f'{{"a": {entry(shape=[-1])}}}', 4),
    "fraction": (f'{{"a": {entry(shape=[1.0])}}}', 4),
    "bool": (f'{{"a": {entry(shape=[True])}}}', 4),
    "text": (f'{{"a": {entry(shape="1")}}}', 4),
    "overflow": (f'{{"a": {entry(shape=[2**63, 2])}}}', 4),
    "overflow to 4 bytes": (f'{{"a": {entry(shape=[2**62 + 1, 1, 1])}}}', 4),
    "overflow times zero": (f'{{"a": {entry(shape=[2**63, 2, 0], offsets=[0, 0])}}}', 0),
    "odd half bytes": (f'{{"a": {entry("F4", [3], [0, 1])}}}', 1),
    "unknown dtype": (f'{{"a": {entry("F31")}}}', 4),
    "small letters": (f'{{"a": {entry("f32")}}}', 4),
    "dtype of no text": (f'{{"a": {entry(["F32"])}}}', 4),
    "field missing": ('{"a": {"dtype": "F32", "shape": [1]}}', 4),
    "entry of no object": ('{"a": 4}', 4),
    "metadata of numbers": (f'{{"__metadata__": {{"a": 1}}, "a": {A}}}', 4),
    "metadata of no object": (f'{{"__metadata__": "pt", "a": {A}}}', 4),
    "list": ("[]", 0),
    "null": ("null", 0),
    "nothing": ("", 0),
    "zeros behind": (f'{{"a": {A}}}\0\0', 4),
    "two objects": ("{}{}", 0),
    "unclosed": (f'{{"a": {A}', 4),
    "comma": (f'{{"a": {A},}}', 4),
    "single quotes": ("{'a': 1}", 0),
    "control character": (f'{{"\1": {A}}}', 4),
    "half a pair": (f'{{"\\ud800": {A}}}', 4),
    "byte order mark": ("\ufeff{}", 0),
    "deep": (f'{{"a": {"[" * 100_000}', 4),
    "not UTF-8": (b'{"\xff": 1}', 0),
}


@pytest.mark.parametrize("case", RIGHT)
def test_a_right_header_is_read_as_the_package_reads_it(tmp_path, case):
    header, size = RIGHT[case]
    data = safetensors_bytes(header=header, data=bytes(size))
    assert theirs(data)
    assert ours(tmp_path / "a.safetensors", data) == "read"
    found = {name: (info["dtype"], info["shape"] or [1]) for name, info in deserialize(data)}
    infos = read_safetensors(tmp_path / "a.safetensors").tensors.values()
    assert {info.name: (info.format, list(info.shape)) for info in infos} == found


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_header_is_refused_as_the_package_refuses_it(tmp_path, case):
    header, size = WRONG[case]
    data = safetensors_bytes(header=header, data=bytes(size))
    assert not theirs(data)
    assert ours(tmp_path / "a.safetensors", data) in ("bad_safetensors", "file_cut")


@pytest.mark.parametrize("length", [0, 1, 3, 100_000_000, 100_000_001, 2**62, 2**63, 2**64 - 1])
def test_a_wrong_header_length_is_refused(tmp_path, length):
    data = safetensors_bytes(WEIGHTS, header_length=length)
    assert not theirs(data)
    too_long = 1 < length <= 100_000_000 and length > len(data)
    assert ours(tmp_path / "a.safetensors", data) == ("file_cut" if too_long else "bad_safetensors")


def test_a_file_cut_at_any_byte_is_refused(tmp_path):
    whole = safetensors_bytes(WEIGHTS)
    for size in range(1, len(whole)):
        assert not theirs(whole[:size])
        assert ours(tmp_path / "a.safetensors", whole[:size]) == "file_cut", size
    assert ours(tmp_path / "a.safetensors", whole) == "read"
    assert ours(tmp_path / "a.safetensors", b"") == "file_empty"


def test_a_cut_file_names_the_tensor(tmp_path):
    path = tmp_path / "a.safetensors"
    for lost, words in ((1, "'second' needs 8 bytes at byte .*, has 7"), (10, "'first' needs 24 bytes .*, has 22")):
        path.write_bytes(safetensors_bytes(WEIGHTS)[:-lost])
        with pytest.raises(TurbosparkError, match=words):
            read_safetensors(path)


def test_a_name_with_two_meanings_is_refused_where_the_package_takes_the_last(tmp_path):
    header = f'{{"a": {entry("I32")}, "a": {entry("F32")}}}'
    assert theirs(safetensors_bytes(header=header, data=bytes(4)))
    path = write_safetensors(tmp_path / "a.safetensors", header=header, data=bytes(4))
    with pytest.raises(TurbosparkError, match="has the key 'a' twice"):
        read_safetensors(path)


def test_the_dtypes_are_those_of_the_package(tmp_path):
    for dtype, bits in BITS.items():
        data = safetensors_bytes(header=f'{{"a": {entry(dtype, [4], [0, bits // 2])}}}', data=bytes(bits // 2))
        assert theirs(data)
        assert ours(tmp_path / "a.safetensors", data) == "read"
    with pytest.raises(SafetensorError) as caught:
        deserialize(safetensors_bytes(header=f'{{"a": {entry("none")}}}', data=bytes(4)))
    assert all(f"`{dtype}`" in str(caught.value) for dtype in BITS)
    assert str(caught.value).count("`") == 2 * len(BITS) + 2


def test_a_message_stays_short_whatever_the_header_holds(tmp_path):
    for header in (
        f'{{"{"n" * 100_000}": 1}}',
        f'{{"a": {entry("d" * 100_000)}}}',
        f'{{"a": {entry(shape=["x"] * 100_000)}}}',
        f'{{"a": {entry(shape=[1] * 100_000, offsets=[0, 8])}}}',
    ):
        with pytest.raises(TurbosparkError) as caught:
            read_safetensors(write_safetensors(tmp_path / "a.safetensors", header=header, data=bytes(4)))
        assert len(caught.value.message) < 1000


def test_weights_alone_are_no_model(tmp_path):
    path = write_safetensors(tmp_path / "model.safetensors", WEIGHTS)
    with pytest.raises(TurbosparkError, match="without a config") as caught:
        open_checkpoint(path)
    assert str(tmp_path) in caught.value.hint


def test_a_pointer_in_place_of_the_file_is_hinted_at(tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(TurbosparkError) as caught:
        read_safetensors(path)
    assert "Git LFS pointer" in caught.value.hint


def test_verdicts_on_damaged_files_agree_with_the_package(tmp_path):
    whole = safetensors_bytes(WEIGHTS, metadata={"format": "pt"})
    head = 8 + struct.unpack("<Q", whole[:8])[0]
    rng = np.random.default_rng(11)
    verdicts = {True: 0, False: 0}
    for _ in range(600):
        data = bytearray(whole)
        for at in rng.integers(0, head, rng.integers(1, 3)):
            data[at] = rng.choice(bytearray(b'0123456789{}[]",: aFIU-.\xff'))
        if rng.random() < 0.1:
            data = data[: rng.integers(1, len(data))]
        verdict = ours(tmp_path / "a.safetensors", bytes(data))
        assert verdict in ("read", "bad_safetensors", "file_cut")
        assert (verdict == "read") == theirs(bytes(data)), bytes(data)
        verdicts[verdict == "read"] += 1
    assert min(verdicts.values()) > 20
