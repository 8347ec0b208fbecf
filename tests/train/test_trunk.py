"""The torch trunk against the runtime's own forward, whole and token by token."""

import numpy as np
import pytest
import torch

import turbospark
from tests.tiny.dense import write_dense_gguf
from tests.tiny.hf import write
from tests.tiny.llama import tiny_llama
from tests.tiny.qwen3_5 import hf_model, write_qwen_gguf
from turbospark.errors import TurbosparkError
from turbospark.train.trunk import open_trunk

torch.set_num_threads(1)
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]


@pytest.fixture(params=["gguf", "hf", "llama3 in hf", "qwen3_5 gguf", "qwen3_5 hf"])
def path(request, tmp_path):
    if "qwen" in request.param:
        model = hf_model(False)
        return write(tmp_path / "m", model) if "hf" in request.param else write_qwen_gguf(tmp_path / "m.gguf", model)
    model = tiny_llama("llama3" if "llama3" in request.param else "default")
    return write_dense_gguf(tmp_path / "m.gguf", model) if request.param == "gguf" else write(tmp_path / "m", model)


def test_logits_and_taps_are_the_runtimes(path):
    model = turbospark.load(path, backend="reference")
    seen = {}
    model.engine.model.trace.sink = lambda name, value: seen.setdefault(name, []).append(np.array(value))
    want = model.logits(IDS)
    trunk = open_trunk(path, positions=64)
    taken = trunk.full(torch.tensor([IDS]), (0, 2))
    ours = trunk.logits(taken.hidden)[0].numpy()
    assert np.abs(ours - want).max() < 1e-4 * want.std()
    tapped = np.concatenate([np.concatenate(seen[f"blk.{i}.out"]) for i in (0, 2)], -1)
    assert np.abs(taken.taps[0].numpy() - tapped).max() < 1e-4 * tapped.std()


def test_a_token_at_a_time_is_the_whole(path):
    trunk = open_trunk(path, positions=64)
    ids = torch.tensor([IDS, IDS[::-1]])
    whole = trunk.logits(trunk.full(ids).hidden)
    state = trunk.state(2, 16)
    for i in range(len(IDS)):
        logits = trunk.step(ids[:, i], torch.tensor([i]), state, 16)
        torch.testing.assert_close(logits, whole[:, i], rtol=1e-4, atol=1e-4)


def test_a_layer_that_is_not_plain_is_refused(tmp_path):
    path = write(tmp_path / "m", tiny_llama(attention_bias=True))
    with pytest.raises(TurbosparkError, match="cannot be trained on"):
        open_trunk(path)


def test_a_mixture_is_refused(tmp_path):
    with pytest.raises(TurbosparkError, match="cannot be trained on"):
        open_trunk(write_qwen_gguf(tmp_path / "m.gguf", hf_model(True)))
