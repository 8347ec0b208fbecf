"""GGUF files in several parts, and files that change while they are open: faults 34 to 36."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from tests.faults.refusal import refusal
from tests.tiny.gguf_file import split_gguf, write_gguf
from turbospark.errors import TurbosparkError
from turbospark.formats.gguf import read_gguf

ONES = np.ones((2, 32), np.float32)
METADATA = {"general.architecture": "llama", "tokens": ["a", "bc"]}
TENSORS = {"first": ONES, "second": ("Q8_0", ONES), "third": ("F16", ONES)}


# split sets


@pytest.fixture
def parts(tmp_path) -> list[Path]:
    return split_gguf(tmp_path, "model", METADATA, [{"a": ONES}, {"b": ONES}, {"c": ONES}])


def test_missing_parts_are_listed(parts):
    parts[1].unlink()
    parts[2].unlink()
    error = refusal(parts[0])
    assert error.code == "parts_missing"
    assert "2 are missing: model-00002-of-00003.gguf, model-00003-of-00003.gguf" in error.message


def test_a_part_under_another_name_is_refused(parts):
    error = refusal(parts[0].rename(parts[0].with_name("model.gguf")))
    assert error.code == "parts_missing"
    assert "one of 3 parts" in error.message


def test_parts_in_wrong_order_are_refused(parts):
    parts[1].rename(parts[1].with_name("kept"))
    parts[2].rename(parts[1])
    parts[1].with_name("kept").rename(parts[2])
    assert "split.no and split.count are (2, 3), by its name (1, 3)" in refusal(parts[0]).message


def test_a_part_of_another_set_is_refused(parts, tmp_path):
    (tmp_path / "other").mkdir()
    others = split_gguf(tmp_path / "other", "model", METADATA, [{"a": ONES}, {"a": ONES}, {"c": ONES, "d": ONES}])
    mine = parts[1].read_bytes()
    parts[1].write_bytes(others[1].read_bytes())
    assert "tensor 'a' is in" in refusal(parts[0]).message
    parts[1].write_bytes(mine)
    parts[2].write_bytes(others[2].read_bytes())
    assert "split.tensors.count is 3, the 3 parts have 4 tensors" in refusal(parts[0]).message


def test_a_cut_part_names_its_file_and_tensor(parts):
    os.truncate(parts[2], parts[2].stat().st_size - 1)
    message = refusal(parts[0]).message
    assert str(parts[2]) in message
    assert "tensor 'c' needs 256 bytes" in message


@pytest.mark.parametrize("count", [np.uint64(2**62), np.uint16(65535), "3", [3], 3.0])
def test_a_split_count_that_cannot_be_is_refused(tmp_path, count):
    path = write_gguf(tmp_path / "m-00001-of-00003.gguf", {"split.no": 0, "split.count": count}, TENSORS)
    assert refusal(path).code in ("parts_missing", "bad_gguf")


# files that change


def test_a_file_cut_while_open_is_refused_at_the_next_tensor(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", METADATA, TENSORS)
    checkpoint = read_gguf(path)
    size = path.stat().st_size
    os.truncate(path, size - 64)
    for access in (lambda: checkpoint.open("first"), lambda: checkpoint.metadata["tokens"]):
        with pytest.raises(TurbosparkError, match=f"had {size} bytes and now has {size - 64}") as caught:
            access()
        assert caught.value.code == "file_changed"


def test_a_file_replaced_while_open_keeps_its_content(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", METADATA, TENSORS)
    checkpoint = read_gguf(path)
    write_gguf(tmp_path / "b.gguf", {}, {"first": 5 * ONES}).replace(path)
    assert (checkpoint.open("first").data.view("<f4") == ONES).all()


def test_files_are_closed_with_the_last_view(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", METADATA, TENSORS)

    def held() -> int:
        return sum(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())

    checkpoint = read_gguf(path)
    view = checkpoint.open("first")
    del checkpoint
    assert (view.data.view("<f4") == ONES).all()
    del view
    assert held() == 0
    path.write_bytes(path.read_bytes()[:-100])
    refusal(path)
    gc.collect()  # of the traceback that pytest keeps
    assert held() == 0
