"""Faults 1-4, 6-8, 15, 16, 31-33, 52: an oracle hands the engine blocks to verify; only the speed may change."""

import pytest

from tests.parity.harness import some_ids
from tests.tiny.memory import VOCAB, tiny_llama
from tests.tiny.oracle import Oracle, params, plain, run
from turbospark.engine.loop import Engine
from turbospark.errors import TurbosparkError

PROMPT = some_ids(11, VOCAB, 7)
MISTAKES = {
    "none": lambda position: False,
    "all": lambda position: True,
    "every third": lambda position: position % 3 == 0,
    "first of each pair": lambda position: position % 2 == 0,
}


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def letters(token: int) -> bytes:
    return bytes([97 + token % 26])


def drafted(model, prompt, wrong=MISTAKES["none"], count=7, **fields):
    """The same request under a drafter that knows what plain decoding would go on to say."""
    submit = {key: fields.pop(key) for key in ("pieces", "end_ids") if key in fields}
    unbounded = {k: v for k, v in fields.items() if k not in ("max_new", "stop", "stop_token_ids")}
    future = plain(model, prompt, **unbounded, max_new=100, ignore_eos=True).context
    engine = Engine(model, slots=2, chunk=32, drafter=Oracle(future, count=count, wrong=wrong))
    texts = []
    request = engine.submit(prompt, params(model, **fields), **submit)
    while not request.done:
        texts += [u.text for u in engine.step()]
    return request, b"".join(texts), engine


@pytest.mark.parametrize("wrong", MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("settings", [{}, {"temperature": 0.8}, {"temperature": 1.5, "top_k": 9, "seed": 5}])
def test_proposals_change_no_token(model, wrong, settings):
    request, _, _ = drafted(model, PROMPT, wrong, max_new=40, **settings)
    assert request.output == plain(model, PROMPT, max_new=40, **settings).output


def test_right_proposals_are_all_accepted(model):
    request, _, _ = drafted(model, PROMPT, max_new=41)
    assert (request.stats.rounds, request.stats.accepted) == (5, 35)
    assert request.stats.accepted_by_position == [5] * 7


@pytest.mark.parametrize("budget", range(1, 10))
def test_exactly_max_new_tokens_with_a_perfect_drafter(model, budget):
    request, _, _ = drafted(model, PROMPT, max_new=budget)
    assert request.output == plain(model, PROMPT, max_new=budget).output
    assert (len(request.output), request.reason) == (budget, "length")


def test_zero_tokens_asked_for_cost_no_work(model):
    engine = Engine(model, slots=1)
    request = engine.submit(PROMPT, params(model, max_new=0))
    assert (request.reason, request.output, engine.busy) == ("length", [], False)


@pytest.mark.parametrize("offset", range(9))
def test_an_end_token_inside_a_block_ends_everything_there(model, offset):
    output = plain(model, PROMPT, max_new=20).output
    end = output[offset]
    expected = output[: output.index(end) + 1]
    request, text, engine = drafted(model, PROMPT, max_new=20, end_ids=[end], pieces=letters)
    assert (request.output, request.reason) == (expected, "stop")
    assert text == b"".join(map(letters, expected[:-1]))
    # the cache holds the prompt and every kept token but the last, which was drawn and never fed
    assert engine.session.cursors[0].tokens == [*PROMPT, *expected[:-1]]
    assert request.stats.accepted <= len(expected) - 1


@pytest.mark.parametrize("start", range(1, 9))
def test_a_stop_string_finished_inside_a_block_cuts_text_ids_and_cache_alike(model, start):
    output = plain(model, PROMPT, max_new=30).output
    whole = b"".join(map(letters, output))
    stop = whole[start : start + 3]
    index = whole.index(stop)
    request, text, engine = drafted(model, PROMPT, max_new=30, stop=stop.decode(), pieces=letters)
    assert (text, request.output, request.reason) == (whole[:index], output[: index + 3], "stop")
    assert engine.session.length(0) == len(PROMPT) + index + 2


def test_the_earlier_of_stop_and_length_wins(model):
    output = plain(model, PROMPT, max_new=12).output
    stop = b"".join(map(letters, output[4:7])).decode()
    early, text, _ = drafted(model, PROMPT, max_new=6, stop=stop, pieces=letters)
    assert (early.reason, len(early.output), text) == ("length", 6, b"".join(map(letters, output[:6])))
    late, _, _ = drafted(model, PROMPT, max_new=9, stop=stop, pieces=letters)
    assert (late.reason, len(late.output)) == ("stop", 7)


@pytest.mark.parametrize("left", range(1, 10))
def test_near_the_end_of_the_context_the_block_shrinks(left):
    model = tiny_llama(context=40)
    prompt = some_ids(40 - left, VOCAB, 3)
    request, _, _ = drafted(model, prompt)
    assert (len(request.output), request.reason) == (left, "length")
    assert request.output == plain(model, prompt).output


def test_a_full_context_ends_with_length(model):
    request = plain(model, PROMPT)
    assert (len(request.context), request.reason) == (model.max_context, "length")


def test_a_prompt_longer_than_the_context_names_both_numbers(model):
    with pytest.raises(TurbosparkError, match=r"130 tokens.*128") as error:
        Engine(model, slots=1).submit(some_ids(130, VOCAB), params(model))
    assert error.value.code == "context_length_exceeded"


def test_committed_logits_do_not_depend_on_the_drafter(model):
    request, _, engine = drafted(model, PROMPT, MISTAKES["every third"], max_new=30)
    ids = [*request.context[:-1], 3, 4, 5]
    run(engine, engine.submit(ids, params(model, max_new=5)))
    assert run(engine, engine.submit(ids, params(model, max_new=9))).output == plain(model, ids, max_new=9).output


def test_two_drafted_requests_and_a_cancelled_one_answer_as_if_alone(model):
    prompts = [some_ids(30, VOCAB, 1), some_ids(4, VOCAB, 2), some_ids(9, VOCAB, 3)]
    settings = {"temperature": 0.7, "max_new": 25}
    alone = [plain(model, p, **settings) for p in prompts]
    engine = Engine(
        model, slots=3, chunk=16, drafter=Oracle(*(r.context for r in alone), wrong=MISTAKES["every third"])
    )
    requests = [engine.submit(p, params(model, **settings)) for p in prompts]
    for _ in range(3):
        engine.step()
    engine.cancel(requests[1])
    while engine.busy:
        engine.step()
    assert requests[0].output == alone[0].output
    assert requests[2].output == alone[2].output


def test_penalties_and_bias_act_inside_a_block_as_in_plain_decoding(model):
    settings = {
        "repetition_penalty": 1.4,
        "frequency_penalty": 0.5,
        "presence_penalty": 0.3,
        "logit_bias": {3: 2.0},
    }
    request, _, _ = drafted(model, PROMPT, MISTAKES["every third"], max_new=40, **settings)
    assert request.output == plain(model, PROMPT, max_new=40, **settings).output


def test_one_logprob_for_each_emitted_token(model):
    def logprobs(drafter):
        engine = Engine(model, slots=1, drafter=drafter)
        request = engine.submit(PROMPT, params(model, max_new=20, logprobs=1))
        drawn = []
        while not request.done:
            drawn += [d for u in engine.step() for d in u.drawn]
        return drawn

    expected = logprobs(None)
    future = [*PROMPT, *[d.token for d in expected]]
    assert logprobs(Oracle(future, wrong=MISTAKES["every third"])) == expected


def test_the_drafter_is_told_of_no_more_rows_of_a_sequence_than_a_forward_may_have(model):
    """Its rings have room for no more; rows wait for the next proposals, for which there is no room in the end."""
    engine = Engine(model, slots=1, chunk=16, drafter=Oracle([], count=7))
    run(engine, engine.submit(some_ids(40, VOCAB, 1), params(model, max_new=50, speculative="off")))
    told = [len(states["final"]) for states in engine.drafter.states]
    assert max(told) == 16
    assert len(told) <= 6


def test_the_drafter_sees_every_committed_row_once_and_in_order(model):
    request, _, engine = drafted(model, PROMPT, MISTAKES["every third"], max_new=30)
    engine.speculation.tell()  # of the rows that would wait for the next proposals
    seen = [(position, token) for _, position, token in engine.drafter.seen]
    assert seen == list(enumerate(request.context[:-1]))
    assert all(len(states["final"]) == len(states[0]) == len(states[1]) for states in engine.drafter.states)
