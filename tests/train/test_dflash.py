"""The torch drafter against the NumPy one's golden cases, and its blocks against each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.draft.test_golden_cases import CASES, LIMIT, relative
from turbospark.draft.dflash_config import from_hf
from turbospark.train.dflash import Blocks, DFlash2
from turbospark.train.export import read_folder

torch.set_num_threads(1)


def drafter(folder, rows=None):
    stored = np.load(folder / "cases.npz")
    declared, tensors = read_folder(folder)
    config = from_hf(declared, folder.name)
    config = replace(config, block=rows or config.block)
    embedding, head = (torch.from_numpy(stored[n].astype(np.float32)) for n in ("embed_tokens", "lm_head"))
    model = DFlash2(config, embedding, head, 512)
    model.load_state_dict({n: torch.from_numpy(v) for n, v in tensors.items()})
    return model.eval(), stored


@pytest.mark.parametrize(("folder", "name"), CASES, ids=[f"{f.name}-{n}" for f, n in CASES])
def test_the_golden_cases(folder, name):
    rows = len(np.load(folder / "cases.npz")[f"{name}.hidden"])
    model, stored = drafter(folder, rows)
    want = {k.removeprefix(name + "."): stored[k] for k in stored.files if k.startswith(name + ".")}
    taps = torch.from_numpy(want["taps"].astype(np.float32))[None]
    blocks = Blocks(torch.tensor([[int(want["anchor"])]]), torch.tensor([[taps.shape[1]]]))
    with torch.no_grad():
        hidden = model.block(blocks, model.context(taps))[0, 0]
        assert relative(hidden.numpy(), want["hidden"]) < LIMIT
        guess = model.guess(taps, blocks)
        assert relative(guess.logits[0, 0].numpy(), want["logits"]) < LIMIT
        if model.config.selector is None:
            return
        np.testing.assert_array_equal(guess.candidates[0, 0].numpy(), want["candidates"])
        before = np.stack([np.full(model.config.selector.top_k, int(want["anchor"])), *want["candidates"][:-1]])
        for p in range(before.shape[1]):
            scores = model.scores(guess, torch.from_numpy(before[:, p])[None, None])[0, 0]
            assert relative(scores.numpy(), want["scores"][:, p]) < LIMIT


def test_blocks_of_a_batch_are_what_they_are_alone():
    model, stored = drafter(CASES[0][0])
    taps = torch.randn(2, 40, stored[f"{CASES[0][1]}.taps"].shape[1])
    at = torch.tensor([[3, 39, 17, 20], [8, 1, 30, 16]])
    anchors = torch.tensor([[5, 1, 2, 9], [3, 3, 7, 1]])
    with torch.no_grad():
        together = model.block(Blocks(anchors, at), model.context(taps))
        for s in range(2):
            for a in range(4):
                before = taps[s : s + 1, : at[s, a]]
                alone = model.block(Blocks(anchors[s, a].view(1, 1), at[s, a].view(1, 1)), model.context(before))
                assert relative(together[s, a].numpy(), alone[0, 0].numpy()) < 1e-5


def test_a_new_drafter_is_dflash_alone():
    """Convolutions begin as identity and the selector adds nothing."""
    folder = next(f for f, _ in CASES if f.name == "dflash2")
    model, _ = drafter(folder)
    fresh = DFlash2(model.config, model.embedding, model.head, 64)
    x = torch.randn(1, 3, model.config.block, model.config.hidden)
    conv = fresh.layers[0].mlp_conv
    torch.testing.assert_close(conv(x, conv.kernel(x), 0), x)
    blocks = Blocks(torch.tensor([[5]]), torch.tensor([[6]]))
    guess = fresh.guess(torch.randn(1, 9, len(model.config.taps) * model.config.hidden), blocks)
    scores = fresh.scores(guess, torch.zeros(1, 1, model.config.block - 1, dtype=torch.int64))
    torch.testing.assert_close(scores, guess.unary)
