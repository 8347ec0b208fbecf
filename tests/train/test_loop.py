"""Training on a trunk that says the alphabet: it learns, resumes, and leaves a folder that is what it says."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from tests.tiny.alphabet import END, write_alphabet
from turbospark.draft.dflash_config import from_hf
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import load_tokenizer
from turbospark.train.command import train_drafter
from turbospark.train.export import read_folder
from turbospark.train.gguf import write_gguf
from turbospark.train.settings import Settings
from turbospark.train.trunk import open_trunk
from turbospark.train.writer import Start, Writer, chat_of

torch.set_num_threads(1)
TINY = Settings(
    steps=60, sequences=12, together=8, length=96, batch=4, anchors=8, layers=1, rank=4, top_k=3, draft_ids=64,
    conv_group=8, block=4, window=16, rate=3e-3,
)  # fmt: skip


@pytest.fixture
def trunk(tmp_path):
    return write_alphabet(tmp_path / "alphabet.gguf")


def quiet(text):
    pass


def run(trunk, out, settings=TINY):
    return train_drafter(trunk, out, settings, device="cpu", held_out_prompts=1, answer=40, say=quiet)


def test_a_trained_drafter_knows_the_alphabet(trunk, tmp_path):
    report = run(trunk, tmp_path / "out")
    assert report["recall@1"] > 0.9
    assert report["accepted"]["code 0"]["length"] > 3
    declared, tensors = read_folder(tmp_path / "out")
    config = from_hf(declared, "out")
    assert config.selector.top_k == 3
    assert config.taps == (0,)
    assert tensors["d2t"].shape == (64,)
    ids = tensors["d2t"] + np.arange(64)
    assert END in ids
    assert json.loads((tmp_path / "out" / "report.json").read_text())["settings"]["steps"] == 60


def test_a_run_goes_on_from_its_checkpoint(trunk, tmp_path):
    once = tmp_path / "once"
    run(trunk, once, dataclasses.replace(TINY, steps=8))
    done = torch.load(once / "checkpoint.pt", weights_only=True)["done"]
    run(trunk, once, dataclasses.replace(TINY, steps=12))
    assert (done, torch.load(once / "checkpoint.pt", weights_only=True)["done"]) == (8, 12)


def test_a_checkpoint_of_other_settings_is_refused(trunk, tmp_path):
    run(trunk, tmp_path / "out", dataclasses.replace(TINY, steps=1))
    with pytest.raises(TurbosparkError, match=r"gamma 4.0, asked 5.0"):
        run(trunk, tmp_path / "out", dataclasses.replace(TINY, steps=2, gamma=5.0))


def test_conversations_keep_to_the_chat(trunk):
    tokenizer = load_tokenizer(open_checkpoint(trunk))
    chat = chat_of(tokenizer)
    starts = [
        Start([ord("x")], True, 0.0, 50, 1),
        Start([ord("c")], False, 0.0, 5, 2),
        Start([ord("a")], True, 0.8, 9, 3),
    ]
    made = Writer(open_trunk(trunk, positions=96), chat, starts, 96).run()
    shown = [bytes(t for t in row if t < 256).decode("latin-1") for row in made.tokens.tolist()]
    assert shown[0].startswith("user\nx\nassistant\na")
    answers = made.tokens[0][made.answer[0]].tolist()
    assert answers[:27] == [*b"abcdefghijklmnopqrstuvwxyz", END]
    assert bytes(made.tokens[1][made.answer[1]][:4].tolist()) == b"abcd"
    assert made.tokens[1][made.answer[1]][4] == END


def test_what_a_sequence_says_does_not_depend_on_its_neighbours(trunk):
    chat = chat_of(load_tokenizer(open_checkpoint(trunk)))
    starts = [Start([97 + i], bool(i % 2), 0.8, 30, i) for i in range(3)]
    together = Writer(open_trunk(trunk, positions=80), chat, starts, 80).run()
    for i, start in enumerate(starts):
        alone = Writer(open_trunk(trunk, positions=80), chat, [start], 80).run()
        torch.testing.assert_close(alone.tokens[0], together.tokens[i])


@pytest.fixture
def plain(tmp_path):
    """A model that goes on with texts; a line end lies between them."""
    return write_alphabet(tmp_path / "plain.gguf", None)


def test_a_model_without_a_template_goes_on_with_texts(plain, tmp_path):
    asked = {"low": ["abc", "m"], "high": ["xy"]}
    again = dataclasses.replace(TINY, made=0.0)
    report = train_drafter(
        plain, tmp_path / "out", again, device="cpu", prompts=["ab", "hi"], asked=asked, answer=40, say=quiet
    )
    assert report["answer_tokens"] == TINY.sequences * (TINY.length - 2)
    assert report["accepted"]["low 0"]["length"] >= 3
    assert report["accepted"]["high 0"]["rounds"] == 1, "z and the end are all that follows"


def test_a_model_without_a_template_needs_texts(plain, tmp_path):
    with pytest.raises(TurbosparkError, match="has no chat template"):
        run(plain, tmp_path / "out")


def test_a_run_begins_with_a_file(trunk, tmp_path):
    run(trunk, tmp_path / "once")
    declared, tensors = read_folder(tmp_path / "once")
    write_gguf(tmp_path / "d.gguf", from_hf(declared, "once"), tensors, "F32", "F32")
    first = dataclasses.replace(TINY, steps=1, rate=1e-9)
    settings = {"device": "cpu", "held_out_prompts": 1, "answer": 40, "say": quiet}
    report = train_drafter(trunk, tmp_path / "twice", first, begin_with=tmp_path / "d.gguf", **settings)
    assert report["recall@1"] > 0.9
    narrow = dataclasses.replace(first, rank=2)
    with pytest.raises(TurbosparkError, match="the drafter to train has"):
        train_drafter(trunk, tmp_path / "other", narrow, begin_with=tmp_path / "d.gguf", **settings)
