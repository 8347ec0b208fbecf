"""Loading and the Python surface, on a model that says the alphabet."""

import pytest

import turbospark
from tests.tiny.alphabet import ALPHABET, write_alphabet, write_ids_only
from turbospark import SamplingParams, TurbosparkError

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
