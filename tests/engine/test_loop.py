"""The engine on a tiny model: batching changes nothing, slots are freed, prefixes are reused."""

import numpy as np
import pytest

from tests.parity.harness import check_groupings, some_ids
from tests.tiny.memory import VOCAB, tiny_llama
from tests.tiny.oracle import params, plain, run
from turbospark.engine.loop import Engine
from turbospark.engine.sampler import Sampler
from turbospark.errors import TurbosparkError


@pytest.fixture(scope="module")
def model():
    return tiny_llama()


def test_rows_are_bit_equal_in_every_grouping(model):
    check_groupings(model)


def test_rows_are_bit_equal_in_every_grouping_through_a_ring():
    check_groupings(tiny_llama(context=192, window=16))


def test_logits_at_all_positions_are_those_generation_draws_from(model):
    prompt = some_ids(40, VOCAB)
    request = plain(model, prompt, max_new=8)
    logits = Engine(model, slots=1, chunk=16).logits(request.context)
    assert [int(row.argmax()) for row in logits[len(prompt) - 1 : -1]] == request.output


def test_requests_in_one_batch_answer_as_if_alone(model):
    prompts = [some_ids(n, VOCAB, n) for n in (1, 50, 7, 33, 90)]
    settings = [{"temperature": 0.9, "seed": i, "max_new": 5 + 3 * i} for i in range(5)]
    alone = [plain(model, p, **s).output for p, s in zip(prompts, settings, strict=True)]
    engine = Engine(model, slots=3, chunk=16)
    requests = [engine.submit(p, params(model, **s)) for p, s in zip(prompts, settings, strict=True)]
    while engine.busy:
        engine.step()
    assert [r.output for r in requests] == alone


def test_a_long_prompt_does_not_stop_a_decoding_request(model):
    engine = Engine(model, slots=2, chunk=16)
    first = engine.submit(some_ids(5, VOCAB), params(model, max_new=30))
    engine.step()
    engine.submit(some_ids(100, VOCAB, 2), params(model, max_new=2))
    before = len(first.output)
    for _ in range(5):
        engine.step()
    assert len(first.output) == before + 5


def test_a_prompt_that_begins_like_another_is_not_fed_twice(model):
    engine = Engine(model, slots=2, chunk=64)
    shared = some_ids(60, VOCAB)
    run(engine, engine.submit([*shared, 1, 2], params(model, max_new=3)))
    other = run(engine, engine.submit([*shared, 5, 6], params(model, max_new=6)))
    assert other.stats.reused_tokens == 60
    assert other.output == plain(model, [*shared, 5, 6], max_new=6).output


def test_a_prefix_is_copied_from_a_slot_that_is_still_at_work(model):
    engine = Engine(model, slots=2, chunk=64)
    shared = some_ids(40, VOCAB)
    first = engine.submit([*shared, 3], params(model, max_new=20))
    engine.step()
    second = engine.submit([*shared, 9, 9], params(model, max_new=20))
    while engine.busy:
        engine.step()
    assert second.stats.reused_tokens == 40
    assert first.output == plain(model, [*shared, 3], max_new=20).output
    assert second.output == plain(model, [*shared, 9, 9], max_new=20).output


def test_a_cancelled_request_leaves_its_neighbours_and_its_slot_alone(model):
    engine = Engine(model, slots=2, chunk=16)
    prompts = [some_ids(20, VOCAB, n) for n in range(3)]
    keep = engine.submit(prompts[0], params(model, max_new=12))
    drop = engine.submit(prompts[1], params(model, max_new=12))
    for _ in range(4):
        engine.step()
    engine.cancel(drop)
    after = engine.submit(prompts[2], params(model, max_new=12))
    while engine.busy:
        engine.step()
    assert drop.reason == "cancelled"
    assert keep.output == plain(model, prompts[0], max_new=12).output
    assert after.output == plain(model, prompts[2], max_new=12).output


def test_cancelled_while_waiting(model):
    engine = Engine(model, slots=1)
    first = engine.submit([1, 2], params(model, max_new=4))
    waiting = engine.submit([3, 4], params(model, max_new=4))
    engine.cancel(waiting)
    while engine.busy:
        engine.step()
    assert (first.reason, waiting.reason, waiting.output) == ("length", "cancelled", [])


def test_one_requests_bad_logits_do_not_end_the_others(model):
    engine = Engine(model, slots=2)
    bad = engine.submit([1, 2, 3], params(model, max_new=4, logit_bias={i: float("-inf") for i in range(VOCAB)}))
    good = engine.submit([4, 5, 6], params(model, max_new=4))
    while engine.busy:
        engine.step()
    assert (bad.reason, bad.error.code) == ("error", "nothing_to_sample")
    assert good.output == plain(model, [4, 5, 6], max_new=4).output


def test_a_step_of_an_idle_engine_does_nothing(model, monkeypatch):
    engine = Engine(model, slots=1)
    monkeypatch.setattr(engine, "model", None)  # a hybrid's kernels take no empty batch
    assert engine.step() == []


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["a layer", "the head", "the sampler"])
def test_a_step_that_breaks_off_frees_every_slot_of_it(model, monkeypatch, where, error):
    engine = Engine(model, slots=2)
    requests = [engine.submit([1, 2, 3], params(model, max_new=4)), engine.submit([1, 2, 4], params(model, max_new=4))]

    def broken(*_):
        raise error("full")

    with monkeypatch.context() as patch:
        places = {"a layer": (model.layers[1], "ffn"), "the head": (model, "logits"), "the sampler": (Sampler, "draw")}
        patch.setattr(*places[where], broken)
        with pytest.raises(error):
            engine.step()
    assert [r.reason for r in requests] == ["error", "error"]
    assert not engine.busy
    again = run(engine, engine.submit([1, 2, 3], params(model, max_new=4)))
    assert again.output == plain(model, [1, 2, 3], max_new=4).output


@pytest.mark.parametrize(
    ("prompt", "code"), [([], "empty_prompt"), ([VOCAB], "token_out_of_range"), ([-1], "token_out_of_range")]
)
def test_a_bad_prompt_is_refused_before_any_work(model, prompt, code):
    with pytest.raises(TurbosparkError) as error:
        Engine(model, slots=1).submit(prompt, params(model))
    assert error.value.code == code


def test_logprobs_are_those_of_the_positions(model):
    request = plain(model, [1, 2, 3], max_new=3)
    logits = Engine(model, slots=1).logits([1, 2, 3, *request.output])
    engine = Engine(model, slots=1)
    asked = engine.submit([1, 2, 3], params(model, max_new=3, logprobs=2))
    drawn = []
    while not asked.done:
        drawn += [d for u in engine.step() for d in u.drawn]
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    for i, d in enumerate(drawn):
        assert d.logprob == pytest.approx(float(expected[2 + i, d.token]), abs=1e-4)
        assert d.top[0][0] == int(logits[2 + i].argmax())
