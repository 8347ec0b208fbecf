"""What a drafter is written as: the folder and the GGUF file say the same and read back."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.draft.test_golden_cases import FOLDERS
from turbospark import quant
from turbospark.draft import dflash_gguf
from turbospark.draft.dflash_config import from_hf
from turbospark.draft.dflash_names import locator
from turbospark.formats import open_checkpoint
from turbospark.train.dflash import DFlash2
from turbospark.train.export import arrays, read_folder, write_folder
from turbospark.train.gguf import write_gguf


@pytest.fixture(params=FOLDERS, ids=[f.name for f in FOLDERS])
def stored(request):
    return read_folder(request.param)


def test_a_folder_reads_back_as_it_was_written(stored, tmp_path):
    declared, tensors = stored
    write_folder(tmp_path, declared, tensors)
    again, values = read_folder(tmp_path)
    assert again == declared
    assert values.keys() == tensors.keys()
    for name in tensors:
        np.testing.assert_allclose(values[name], tensors[name], rtol=2**-8)


def test_a_gguf_file_says_what_the_folder_says(stored, tmp_path):
    declared, tensors = stored
    config = dataclasses.replace(from_hf(declared, "folder"), trunk="llama-1x1-1-0", draft_vocab=None)
    if len({layer.causal for layer in config.layers}) > 1:
        layers = tuple(dataclasses.replace(layer, causal=False) for layer in config.layers)
        config = dataclasses.replace(config, layers=layers)  # a GGUF file has one flag for all
    write_gguf(tmp_path / "d.gguf", config, tensors, "F32", "F32")
    checkpoint = open_checkpoint(tmp_path / "d.gguf")
    again = dflash_gguf.from_gguf(checkpoint.metadata, checkpoint.tensors, "d.gguf")
    assert dataclasses.replace(again, eps=config.eps) == config
    assert again.eps == pytest.approx(config.eps)
    place = locator("gguf")
    for name, values in tensors.items():
        found = next(n for n in place(name) if n in checkpoint.tensors)
        np.testing.assert_array_equal(quant.decode(checkpoint.open(found)), values)
    assert len(checkpoint.tensors) == len(tensors)


def test_a_reduced_vocabulary_is_an_offset_for_each_draft_id(stored):
    config = from_hf(stored[0], "folder")
    table = torch.zeros(config.vocab, config.hidden)
    ids = torch.tensor([1, 4, 5])
    model = DFlash2(config, table, table, 16, ids)
    assert arrays(model)["d2t"].tolist() == [1, 3, 3]
    assert model.column[ids].tolist() == [0, 1, 2]
    assert model.column[2] == -1
