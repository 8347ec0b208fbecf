"""The small hybrid trunk: what is trained is what the runtime reads, the MTP head included."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import turbospark
from turbospark.config.registry import read_config
from turbospark.draft.mtp_model import MTPModel
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.kernels.rows import Rows
from turbospark.train.hybrid.__main__ import main
from turbospark.train.hybrid.file import write_trunk
from turbospark.train.hybrid.loop import Run
from turbospark.train.hybrid.model import Hybrid, MTPHead, Shape
from turbospark.train.hybrid.text import beginning, prepare, untagged

torch.set_num_threads(1)
VOCAB = 270
TINY = Shape(
    vocab=VOCAB, hidden=32, layers=4, width=64, heads=2, kv_heads=1, head_dim=16, key_heads=2, value_heads=4,
    delta_dim=16, interval=2, rotated=8, context=128,
)  # fmt: skip
IDS = [5, 200, 3, 7, 7, 90, 41, 5, 17, 230, 11, 64]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("texts")
    for i in range(120):
        (folder / f"{i}.py").write_text("".join(f"def name{i}(a, b):\n    return a + b * {j}\n\n\n" for j in range(9)))
    (folder / "ca01").write_text("\n\n\tThe/at jury/nn said/vbd ``/`` no/at ''/'' ./.\n")
    prepare([f"code={folder}/*.py", f"brown={folder}/ca*"], folder / "data", VOCAB)
    return folder / "data"


@pytest.fixture
def shaken():
    """A trunk and a head in which every parameter has a say."""
    torch.manual_seed(1)
    model = Hybrid(TINY)
    head = MTPHead(TINY.config(), model.layers[0].rotation)
    for parameter in [*model.parameters(), *head.parameters()]:
        parameter.data += 0.2 * torch.randn_like(parameter) * (1 if parameter.ndim == 1 else parameter.std())
    return model.eval(), head.eval()


@pytest.fixture
def path(shaken, data, tmp_path):
    write_trunk(tmp_path / "m.gguf", shaken[0], data / "tokenizer.json", shaken[1], "F32")
    return tmp_path / "m.gguf"


def test_the_file_is_read_as_it_was_trained(shaken, path):
    read = read_config(open_checkpoint(path))
    assert read.eps == pytest.approx(TINY.eps)
    assert replace(read, eps=TINY.eps) == TINY.config(mtp=1)
    ours = turbospark.load(path, backend="reference").logits(IDS)
    model = shaken[0]
    with torch.no_grad():
        want = torch.nn.functional.linear(model(torch.tensor([IDS])), model.token_embd)[0].numpy()
        model.layers[1].attn_k_norm[3] += 0.5
        moved = torch.nn.functional.linear(model(torch.tensor([IDS])), model.token_embd)[0].numpy()
    assert np.abs(ours - want).max() < 1e-4 * want.std()
    assert np.abs(moved - want).max() > 1e-3 * want.std()


def test_a_chain_of_the_head_is_what_the_runtime_proposes(shaken, path):
    model, head = shaken
    loaded = turbospark.load(path, backend="reference")
    drafter = MTPModel(loaded.engine.model, open_checkpoint(path))
    with torch.no_grad():
        hidden = model(torch.tensor([IDS]))
        states = head(torch.tensor([IDS]), hidden, model.token_embd, 3)
    for start in (2, 6):
        cache = drafter.cache(1, 32)
        fed = Rows.of([(0, 0, IDS[1 : start + 2], start + 1)])
        state = drafter(fed.ids, hidden[0, : start + 1].numpy(), fed, cache)[-1:]
        for m in range(3):
            want = states[m][0, start].numpy()
            assert np.abs(state[0] - want).max() < 1e-4 * want.std()
            rows = Rows.of([(0, start + 1 + m, [IDS[start + 2 + m]], 1)])
            state = drafter(rows.ids, state, rows, cache)


def test_the_tokenizer_of_the_file_is_the_librarys(path, data):
    import tokenizers

    ours, theirs = (
        turbospark.load(path, backend="reference"),
        tokenizers.Tokenizer.from_file(str(data / "tokenizer.json")),
    )
    text = "def name7(a, b):\n    return a + b * 12  # café\n"
    ids = theirs.encode(text).ids
    assert ours.encode(text) == ids
    assert ours.tokenizer.decode(ids) == text
    assert ours.tokenizer.end_ids == {0}


def test_both_are_trained_and_drafting_changes_no_token(data, tmp_path):
    shape = ["--hidden", "64", "--layers", "4", "--width", "64", "--vocab", str(VOCAB)]
    run = [
        "--steps",
        "60",
        "--batch",
        "4",
        "--length",
        "64",
        "--rate",
        "0.01",
        "--out",
        str(tmp_path),
        "--device",
        "cpu",
    ]
    assert main(["trunk", str(data), *run, *shape]) == 0
    assert main(["mtp", str(data), *run]) == 0
    trunk, mtp = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("trunk", "mtp"))
    assert trunk["held out"] < 1.0
    assert mtp["held out"][1] > 0.8
    params = {"temperature": 0.0, "max_new": 40}
    plain = turbospark.load(tmp_path / "hybrid.gguf", backend="reference", drafter=None)
    drafted = turbospark.load(tmp_path / "hybrid.gguf", backend="reference", drafter="mtp")
    once = plain.generate("def name3(a, b):\n", turbospark.SamplingParams(**params))
    twice = drafted.generate("def name3(a, b):\n", turbospark.SamplingParams(**params, speculative=3))
    assert twice.token_ids == once.token_ids
    assert twice.stats.accepted > twice.stats.rounds


def test_a_run_needs_an_end(data, tmp_path, capsys):
    assert main(["trunk", str(data), "--out", str(tmp_path), "--device", "cpu"]) == 1
    assert "has neither" in capsys.readouterr().err
    with pytest.raises(TurbosparkError, match="has neither"):
        Run()


def test_texts_are_split_and_untagged(data):
    sizes = {name: len(np.load(data / f"{name}.npy")) for name in ("train", "held_out")}
    assert sizes["train"] > 10 * sizes["held_out"] > 0
    assert untagged("\n\n\tThe/at jury/nn said/vbd ``/`` no/at ''/'' ./.\n") == 'The jury said "no".\n'
    import random

    text = "a = 1\n" * 200
    cut = beginning(random.Random(0), text)
    assert cut.startswith("a = 1\n")
    assert cut.endswith("\n")
    assert 90 < len(cut) <= 400


def test_no_files_are_named(tmp_path):
    with pytest.raises(TurbosparkError, match="names no files"):
        prepare([f"code={tmp_path}/*.py"], tmp_path / "data", VOCAB)
