"""PyTorch files of a tensor or two: their values, and nothing of what else a pickle could do."""

import os
import pickle
import zipfile

import numpy as np
import pytest
import torch

from turbospark import quant
from turbospark.errors import TurbosparkError
from turbospark.formats.torch_file import read_torch


def saved(tmp_path, value, **options):
    torch.save(value, tmp_path / "t.pt", **options)
    return tmp_path / "t.pt"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (1, 7), (3, 2, 4), ()])
def test_a_tensor_comes_back_as_it_was(tmp_path, dtype, shape):
    tensor = torch.randn(shape).to(dtype)
    read = read_torch(saved(tmp_path, tensor))
    assert read.shape == (shape or (1,))
    np.testing.assert_array_equal(quant.decode(read).reshape(shape), tensor.float().numpy())


def test_a_view_into_a_larger_storage(tmp_path):
    read = read_torch(saved(tmp_path, torch.arange(12.0).reshape(4, 3)[2]))
    np.testing.assert_array_equal(quant.decode(read), [6, 7, 8])


def test_a_dict_of_tensors_and_numbers(tmp_path):
    read = read_torch(saved(tmp_path, {"mask_token_id": 70000, "embedding": torch.nn.Parameter(torch.ones(3))}))
    assert read["mask_token_id"] == 70000
    np.testing.assert_array_equal(quant.decode(read["embedding"]), [1, 1, 1])


def refused(path, code="bad_torch_file"):
    with pytest.raises(TurbosparkError) as error:
        read_torch(path)
    assert error.value.code == code
    return error.value.message


def test_strides_other_than_dense_are_refused_with_both(tmp_path):
    assert "[1, 3]" in refused(saved(tmp_path, torch.arange(12.0).reshape(4, 3).T))


def test_other_numbers_are_refused_by_name(tmp_path):
    assert "LongStorage" in refused(saved(tmp_path, torch.arange(3)))


class Harm:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_in_a_pickle_is_run(tmp_path):
    path = saved(tmp_path, Harm(tmp_path / "made"))
    assert "mkdir" in refused(path)
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(
    "pickled",
    [
        b"",
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02]q\x00.",  # a list
        b"\x80\x02cos\nsystem\nX\x01\x00\x00\x00x\x85R.",
        b"\x80\x02X\xff\xff\xff\x7fx.",
        b"\x80\x02K\x01R.",
        b"\x80\x02h\x05.",
        b"\x80\x02t.",
        b"\x80\x02K\x01Q.",
        pickle.dumps(Harm("x"), protocol=2),
        pickle.dumps({"a": [1]}, protocol=5),
    ],
)
def test_damaged_and_foreign_pickles_are_one_error(tmp_path, pickled):
    with zipfile.ZipFile(tmp_path / "t.pt", "w") as archive:
        archive.writestr("t/data.pkl", pickled)
    refused(tmp_path / "t.pt")


def test_files_that_are_no_zip_are_refused(tmp_path):
    refused(saved(tmp_path, torch.ones(3), _use_new_zipfile_serialization=False))
    (tmp_path / "t.pt").write_bytes(b"")
    refused(tmp_path / "t.pt")
    refused(tmp_path / "none.pt", "file_missing")


def test_a_file_cut_anywhere_is_one_error(tmp_path):
    path = saved(tmp_path, torch.ones(3))
    whole = path.read_bytes()
    for size in range(0, len(whole), 37):
        path.write_bytes(whole[:size])
        refused(path)
