"""Matrices rounded with regard to the rows that they multiply."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.tiny.alphabet import write_alphabet
from turbospark import quant
from turbospark.draft.dflash_config import from_hf
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.train.command import train_drafter
from turbospark.train.data import read
from turbospark.train.dflash import DFlash2
from turbospark.train.export import write_folder
from turbospark.train.gguf import write_file
from turbospark.train.rounding import main, mean_of, rounded, second_moments
from turbospark.train.settings import Settings, drafter_config
from turbospark.train.trunk import open_trunk
from turbospark.train.writer import Written

torch.set_num_threads(1)


def test_products_are_nearer_than_those_of_the_nearest_codes():
    r = np.random.default_rng(1)
    rows = r.standard_normal((400, 8)) @ r.standard_normal((8, 64)) + 0.1 * r.standard_normal((400, 64))
    matrix = r.standard_normal((16, 64)).astype(np.float32)
    moments = torch.from_numpy(rows.T @ rows)
    off = lambda q: np.square(rows @ (quant.decode(q) - matrix).T).mean()
    ours = rounded("m", matrix, moments)
    assert (ours.format, ours.shape) == ("Q4_1", matrix.shape)
    assert off(ours) < 0.3 * off(quant.encode(matrix, "Q4_1"))


def test_columns_that_never_speak_and_values_without_extent_are_no_trouble():
    matrix = np.full((4, 64), 0.5, np.float32)
    assert np.array_equal(quant.decode(rounded("m", matrix, torch.zeros(64, 64))), matrix)


def test_a_drafter_of_other_columns_is_refused_by_name(tmp_path: Path):
    trunk = write_alphabet(tmp_path / "alphabet.gguf")
    told = Settings(
        steps=1, sequences=4, together=4, length=96, batch=2, anchors=4, layers=1, rank=32, top_k=3, draft_ids=64,
        conv_group=8, block=4, window=16,
    )  # fmt: skip
    train_drafter(trunk, tmp_path / "one", told, device="cpu", held_out_prompts=1, answer=8, say=lambda _: None)
    few = ["--sequences", "4", "--length", "96", "--anchors", "4"]
    with pytest.raises(TurbosparkError, match=r"fc.weight: Q4_1 needs a multiple of 32 columns, has 264"):
        main([str(trunk), str(tmp_path / "one"), "--out", str(tmp_path / "one.gguf"), *few])


def test_every_matrix_has_the_moments_of_its_rows(tmp_path: Path):
    torch.manual_seed(1)
    trunk = open_trunk(write_alphabet(tmp_path / "alphabet.gguf"), positions=96)
    told = Settings(steps=1, layers=1, rank=4, top_k=3, draft_ids=0, conv_group=8, block=4, window=16)
    model = DFlash2(from_hf(drafter_config(told, trunk.config, 0, ""), "tiny"), trunk.embedding, trunk.head, 96)
    tokens = torch.randint(97, 120, (2, 90), dtype=torch.int32)
    said = torch.ones_like(tokens, dtype=torch.bool)
    corpus = read(trunk, Written(tokens, said, torch.zeros(2), torch.zeros(2)), (0,))
    found = second_moments(model, corpus, 4)
    assert set(found) == {n for n, p in model.named_parameters() if p.ndim == 2 and not n.endswith("codebook")}
    rows = corpus.taps.flatten(0, 1)
    torch.testing.assert_close(found["fc.weight"], rows.T @ rows)
    blocks = found["layers.0.self_attn.o_proj.weight"]
    assert blocks.shape == (16, 16)
    assert blocks.diagonal().min() > 0


def test_the_mean_of_folders_keeps_the_first_ones_vocabulary(tmp_path: Path):
    one = {"norm.weight": np.ones(4, np.float32), "d2t": np.array([1, 5])}
    two = {"norm.weight": np.full(4, 3, np.float32), "d2t": np.array([0, 9])}
    for name, tensors in (("one", one), ("two", two)):
        write_folder(tmp_path / name, {"name": name}, tensors)
    declared, mean = mean_of([tmp_path / "one", tmp_path / "two"])
    assert declared["name"] == "one"
    np.testing.assert_array_equal(mean["d2t"], one["d2t"])
    np.testing.assert_array_equal(mean["norm.weight"], np.full(4, 2))


def test_what_is_rounded_already_is_stored_as_it_is(tmp_path: Path):
    matrix = np.random.default_rng(2).standard_normal((8, 64)).astype(np.float32)
    ours = rounded("m", matrix, torch.eye(64))
    write_file(tmp_path / "m.gguf", {"general.architecture": "dflash"}, [("m", ours.format, ours)])
    np.testing.assert_array_equal(quant.decode(open_checkpoint(tmp_path / "m.gguf").open("m")), quant.decode(ours))
