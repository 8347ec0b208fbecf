"""The noise that answers were drawn with, and the loss that knows it."""

from __future__ import annotations

import pytest
import torch

from tests.tiny.alphabet import write_alphabet
from turbospark.draft.dflash_config import from_hf
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import load_tokenizer
from turbospark.train.data import read
from turbospark.train.dflash import DFlash2
from turbospark.train.loss import loss_of
from turbospark.train.noise import gumbel
from turbospark.train.settings import Settings, drafter_config
from turbospark.train.trunk import open_trunk
from turbospark.train.writer import Start, Writer, chat_of

torch.set_num_threads(1)


@pytest.fixture
def written(tmp_path):
    """A trunk, and a corpus of two answers: one of much noise, one of none."""
    path = write_alphabet(tmp_path / "alphabet.gguf")
    trunk = open_trunk(path, positions=96)
    chat = chat_of(load_tokenizer(open_checkpoint(path)))
    starts = [Start([ord("x")], True, 9.0, 90, 3), Start([ord("q")], True, 0.0, 90, 4)]
    return trunk, read(trunk, Writer(trunk, chat, starts, 96).run(), (0,))


def test_the_noise_of_a_batch_is_that_of_the_draw(written):
    trunk, corpus = written
    batch = corpus.blocks(torch.tensor([1, 0]), 8, 4, 4.0)
    ids = torch.arange(trunk.config.vocab).expand(*batch.labels.shape, -1)
    logits = trunk.logits(batch.told)
    noise = batch.noise(ids)
    counted = batch.weights > 0
    assert not noise[0].any()
    assert ((logits + noise).argmax(-1) == batch.labels)[counted].all()
    assert (logits.argmax(-1) != batch.labels)[1][counted[1]].any()


def test_the_noisy_loss_knows_which_candidate_won(written):
    trunk, corpus = written
    settings = Settings(steps=1, layers=1, rank=4, top_k=64, draft_ids=0, conv_group=8, block=4, window=16)
    config = from_hf(drafter_config(settings, trunk.config, 0, ""), "tiny")
    model = DFlash2(config, trunk.embedding, trunk.head, 96)
    batch = corpus.blocks(torch.tensor([0]), 8, 4, 4.0)
    right = float(loss_of(model, batch, noisy=1.0).selector)
    assert right < float(loss_of(model, batch._replace(keys=batch.keys + 1), noisy=1.0).selector)
    assert right < float(loss_of(model, batch, noisy=0.0).selector)


def test_noise_is_finite_whatever_is_drawn():
    """The largest word: as float32, three quarters of 2**-24 below 1 would be 1."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("turbospark.train.noise.mixed", lambda h: torch.full_like(h, 0xFFFFFFFF))
        one = torch.tensor(1)
        assert torch.isfinite(gumbel(one, one, one))
        patch.setattr("turbospark.train.noise.mixed", torch.zeros_like)
        assert torch.isfinite(gumbel(one, one, one))
