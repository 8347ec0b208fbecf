"""Loading and the Python surface, on a model that says the alphabet."""

import math
from itertools import zip_longest

import numpy as np
import pytest

import turbospark
from tests.tiny.alphabet import ALPHABET, write_alphabet, write_ids_only
from turbospark import SamplingParams, TurbosparkError
from turbospark.runtime import TextOf

GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture
def path(tmp_path):
    return write_alphabet(tmp_path / "alphabet.gguf")


def test_a_string_is_completed_and_messages_are_answered(path):
    model = turbospark.load(path)
    assert model.generate("x", GREEDY).text == "yz"
    assert model.generate([{"role": "user", "content": "x"}], GREEDY).text == ALPHABET
    assert model.generate([ord("x")], GREEDY).text == "yz"


def test_the_stream_joins_to_the_completion(path):
    model = turbospark.load(path)
    chunks = list(model.stream("a", GREEDY))
    assert "".join(chunk.text for chunk in chunks) == ALPHABET[1:]
    assert [chunk.finish_reason for chunk in chunks][-2:] == [None, "stop"]


def test_the_stream_can_be_left_while_the_prompt_is_read(path):
    model = turbospark.load(path, chunk=4)
    stream = model.stream("x" * 10, GREEDY)
    assert (next(stream).token_ids, next(stream).token_ids) == ([], [])
    assert model.engine.busy
    stream.close()
    assert not model.engine.busy


def test_streams_read_in_turns_each_get_their_whole_answer(path):
    model = turbospark.load(path)
    pairs = list(zip_longest(model.stream("a", GREEDY), model.stream("f", GREEDY)))
    texts = ["".join(chunk.text for chunk in side if chunk) for side in zip(*pairs, strict=True)]
    assert texts == [ALPHABET[1:], ALPHABET[6:]]
    ends = [[chunk for chunk in side if chunk and chunk.finish_reason] for side in zip(*pairs, strict=True)]
    assert [[chunk.finish_reason for chunk in side] for side in ends] == [["stop"], ["stop"]]


def test_a_stream_goes_on_after_another_answer_was_asked_for_in_between(path):
    model = turbospark.load(path)
    stream = model.stream("a", GREEDY)
    first = next(stream)
    assert model.generate("x", GREEDY).text == "yz"
    rest = list(stream)
    assert "".join(chunk.text for chunk in [first, *rest]) == ALPHABET[1:]
    assert rest[-1].finish_reason == "stop"


def test_a_cancelled_answer_ends_with_what_was_held_back(path):
    model = turbospark.load(path)
    text = TextOf(model.submit("a", SamplingParams(temperature=0.0, stop="cdX")))
    chunks = text.chunks(model.engine)
    assert [next(chunks).text, next(chunks).text] == ["b", ""]
    chunks.close()
    assert (text.completion().text, text.completion().finish_reason) == ("bc", "cancelled")


@pytest.mark.parametrize(
    "prompt",
    [
        *(None, 5, b"a", {97}, {"role": "user", "content": "a"}, (i for i in (97,))),
        *([math.inf], [97.0], [True], [None], ["a"], [[97]], [97, {"role": "user"}]),
        *(np.array(97), np.array([[97]]), np.array([97.0]), [np.float32(97.5)]),
    ],
)
def test_what_is_no_prompt_is_refused(path, prompt):
    model = turbospark.load(path)
    for use in (model.generate, model.logits, lambda prompt: list(model.stream(prompt))):
        with pytest.raises(TurbosparkError) as caught:
            use(prompt)
        assert caught.value.code == "bad_prompt"


@pytest.mark.parametrize("ids", [range(97, 99), np.array([97, 98]), (97, np.int32(98))])
def test_ids_come_in_any_sequence_of_integers(path, ids):
    assert turbospark.load(path).generate(ids, GREEDY).text == ALPHABET[2:]


def test_parameters_of_another_type_are_refused(path):
    with pytest.raises(TurbosparkError, match="has dict"):
        turbospark.load(path).generate("a", {"max_new": 3})


def test_loading_tells_how_far_it_is(path):
    told = []
    turbospark.load(path, progress=lambda done, total: told.append((done, total)))
    total = told[0][1]
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)


def test_the_context_is_the_models_own_or_the_one_asked_for(path):
    assert turbospark.load(path).engine.max_context == 256
    assert turbospark.load(path, max_context=65).engine.max_context == 65


@pytest.mark.parametrize("field", ["slots", "chunk"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "4"])
def test_slots_and_chunk_are_whole_numbers_from_one(path, field, value):
    with pytest.raises(TurbosparkError, match=field):
        turbospark.load(path, **{field: value})


@pytest.mark.parametrize("context", [1.5, True, "8", 0, 257])
def test_a_context_is_a_whole_number_the_model_has(path, context):
    with pytest.raises(TurbosparkError, match=f"max_context is {context!r}, this model has 1 to 256"):
        turbospark.load(path, max_context=context)


@pytest.mark.parametrize("model", [None, 5, b"alphabet.gguf"])
def test_a_model_is_named_by_a_path_or_an_alias(model):
    with pytest.raises(TurbosparkError, match="named by a path or an alias"):
        turbospark.load(model)


def test_a_number_of_proposals_needs_a_drafter(path):
    model = turbospark.load(path)
    with pytest.raises(TurbosparkError) as caught:
        model.generate("x", SamplingParams(speculative=3))
    assert caught.value.code == "no_drafter"
    assert "speculative=3" in caught.value.message
    assert not model.engine.busy


def test_a_folder_without_a_tokenizer_works_on_ids(tmp_path):
    model = turbospark.load(write_ids_only(tmp_path))
    assert model.tokenizer is None
    assert len(model.generate([1, 2], SamplingParams(max_new=3, seed=1)).token_ids) == 3
    with pytest.raises(TurbosparkError) as caught:
        model.generate("text")
    assert caught.value.code == "no_tokenizer"
