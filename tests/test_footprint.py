"""What a model needs, and which context leaves room for it."""

from dataclasses import replace

import pytest

from tests.tiny.memory import llama_config, tiny_llama
from turbospark.config.model import MLA, Dense, GatedDelta, Layer, MoE, Rope
from turbospark.errors import TurbosparkError
from turbospark.footprint import BLOCK, MIN_AUTO_CONTEXT, WORKING, choose_context, measure, step_bytes
from turbospark.memory import Memory

PLENTY = Memory(1 << 40, 1 << 40)


def rows_only(context):
    """Two full layers: every position of a slot costs the same."""
    return llama_config(context)


def test_the_cache_is_what_the_model_allocates():
    model = tiny_llama(context=640, window=64)
    told = measure(model.config, 0, 640, slots=3, chunk=32)
    tables = 2 * 4 * 640 * 8 // 2
    assert told.cache == sum(cache.nbytes for cache in model.caches(3, 32)) + tables


def test_measuring_allocates_nothing():
    config = rows_only(1 << 30)
    assert measure(config, 0, config.context, slots=1000, chunk=1).cache > 1 << 47


def test_every_kind_of_layer_is_measured():
    rope = Rope(1e4, 8, True)
    latent = Layer(MLA(2, None, 16, 8, 8, rope, 1.0, 1e-6), Dense(16))
    delta = Layer(GatedDelta(1, 2, 8, 8, 4, True, False), Dense(16))
    config = replace(rows_only(256), layers=(latent, delta))
    one, two = (measure(config, 0, context, 1, 16).cache for context in (128, 256))
    assert two - one == 128 * (16 + 8 + 8) * 4


def test_the_sum_is_of_its_parts():
    told = measure(rows_only(256), 1000, 256, 1, 16)
    assert told.total == 1000 + told.cache + WORKING


def test_none_takes_the_models_own_context():
    assert choose_context(rows_only(100_001), 5, PLENTY, None, 1, 16).context == 100_001


def test_none_shrinks_to_what_memory_holds_and_no_further():
    config, weights = rows_only(1 << 20), 10_000_000
    wanted = measure(config, weights, 10_000 // BLOCK * BLOCK, 2, 16)
    available = 2 * (wanted.total + 100)  # half of it is left to the machine
    chosen = choose_context(config, weights, Memory(available, available), None, 2, 16)
    assert chosen == wanted
    assert measure(config, weights, chosen.context + BLOCK, 2, 16).total > available // 2


def test_none_does_not_shrink_below_a_useful_context_while_the_cache_fits():
    config = rows_only(1 << 20)
    memory = Memory(
        measure(config, 0, MIN_AUTO_CONTEXT, 1, 16).cache, measure(config, 0, MIN_AUTO_CONTEXT, 1, 16).cache
    )
    assert choose_context(config, 1 << 40, memory, None, 1, 16).context == MIN_AUTO_CONTEXT


def test_none_takes_what_is_left_where_even_that_does_not_fit():
    config = rows_only(1 << 20)
    cache = measure(config, 0, 1024, 1, 16).cache
    assert choose_context(config, 0, Memory(cache, cache), None, 1, 16).context == 1024


def test_a_context_that_is_asked_for_is_taken_though_weights_do_not_fit():
    config = rows_only(4096)
    cache = measure(config, 0, 4096, 1, 16).cache
    assert choose_context(config, 1 << 40, Memory(cache, cache), 4096, 1, 16).context == 4096


def test_a_cache_larger_than_memory_is_refused_with_both_numbers_and_what_fits():
    config = rows_only(1 << 20)
    cache = measure(config, 0, 1024, 1, 16).cache
    with pytest.raises(TurbosparkError) as caught:
        choose_context(config, 0, Memory(cache, cache), 1 << 20, 1, 16)
    assert caught.value.code == "not_enough_memory"
    assert "1048576" in caught.value.message
    assert "may be used" in caught.value.message
    assert "1024" in caught.value.hint


def test_no_memory_at_all_is_refused():
    with pytest.raises(TurbosparkError, match="0 bytes may be used"):
        choose_context(rows_only(4096), 0, Memory(1, 0), None, 1, 16)


@pytest.mark.parametrize("asked", [0, -1, 4097])
def test_more_than_the_models_own_is_refused_with_both_numbers(asked):
    with pytest.raises(TurbosparkError) as caught:
        choose_context(rows_only(4096), 0, PLENTY, asked, 1, 16)
    assert caught.value.code == "bad_context"
    assert str(asked) in caught.value.message
    assert "4096" in caught.value.message


def test_a_steps_intermediates_are_never_more_than_was_said(tmp_path):
    """Of the cpu backend, which keeps what a step needed; rows are many, so that no fixed part hides the rest."""
    import turbospark
    from tests.experts.disks import write_mixture

    wide = {"hidden_size": 128, "intermediate_size": 512, "moe_intermediate_size": 256}
    lm = turbospark.load(write_mixture(tmp_path, **wide), "cpu", chunk=512, slots=1, threads=1)
    lm.logits(list(range(64)) * 8)
    scratch = lm.engine.model.kernels.scratch_bytes
    assert step_bytes(lm.config, 256) < scratch < step_bytes(lm.config, 512)


def test_experts_are_counted_with_what_is_shared():
    config = rows_only(64)
    mixture = MoE(8, 2, 100, shared_width=10)
    both = replace(config, layers=(config.layers[0], Layer(config.layers[1].mixer, mixture)))
    row = 2 * (16 * 100 + 6 * config.hidden) + 20 * 10
    assert step_bytes(both, 3) - step_bytes(both, 1) == 2 * (row + 16 * config.hidden)
