"""What Python callers see: load(drafter=...), stats of a completion, and nothing at all where none is asked for."""

import sys

import pytest

import turbospark
from tests.tiny.dflash import dflash_config, write_dflash
from tests.tiny.trunks import write_llama, write_trunk
from turbospark import SamplingParams
from turbospark.errors import TurbosparkError
from turbospark.kernels.reference import ReferenceKernels

GREEDY = SamplingParams(max_new=40, temperature=0.0)


@pytest.fixture
def path(tmp_path):
    return write_llama(tmp_path / "llama.gguf")


def test_a_completion_says_what_speculation_did(path, tmp_path, trunk):
    folder = write_dflash(tmp_path / "d", dflash_config(trunk.config))
    lm = turbospark.load(path, "reference", slots=1, drafter=folder)
    plain = lm.generate([1, 2, 3], SamplingParams(max_new=40, temperature=0.0, speculative="off"))
    assert (plain.stats.rounds, plain.stats.proposed) == (0, 0)
    stats = (done := lm.generate([1, 2, 3], SamplingParams(max_new=40, temperature=0.0, speculative=3))).stats
    assert done.token_ids == plain.token_ids
    assert stats.rounds + stats.plain_steps + stats.accepted == 40  # the prompt was reused, so every step decoded
    assert stats.accepted == sum(stats.accepted_by_position)
    assert stats.proposed == sum(stats.proposed_by_position)
    assert stats.rollbacks <= stats.rounds
    assert min(stats.draft_s, stats.verify_s, stats.commit_s) > 0


def test_auto_measures_plain_steps_too(path):
    stats = turbospark.load(path, "reference", slots=1, drafter="ngram").generate([1, 2, 1, 2], GREEDY).stats
    assert stats.plain_steps > 0
    assert stats.plain_step_s > 0
    assert stats.speed_up > 0


def test_one_policy_serves_requests_one_after_another(path):
    lm = turbospark.load(path, "reference", slots=2, drafter="ngram")
    answers = [lm.generate([1, 2, 1, 2], GREEDY).token_ids for _ in range(3)]
    assert answers == [turbospark.load(path, "reference", slots=1).generate([1, 2, 1, 2], GREEDY).token_ids] * 3


class Counting(ReferenceKernels):
    """What is allocated for caches, and which matrices are taken."""

    def __init__(self):
        super().__init__()
        self.zeroed, self.weights = [], []

    def zeros(self, shape):
        self.zeroed.append(shape)
        return super().zeros(shape)

    def weight(self, tensor):
        self.weights.append(tensor.name)
        return super().weight(tensor)


@pytest.mark.parametrize("family", ["llama", "hybrid", "deepseek2"])
def test_no_drafter_asked_for_allocates_nothing(family, tmp_path, monkeypatch, trunk):
    """The same weights opened, caches made and modules imported as where no drafter exists."""
    made = []

    def kernels(*given):
        made.append(Counting())
        return made[-1]

    monkeypatch.setattr("turbospark.runtime.make_kernels", kernels)
    bare, rich = tmp_path / "bare", tmp_path / "rich"
    bare.mkdir(), rich.mkdir()
    answers = []
    for module in [name for name in sys.modules if name.startswith("turbospark.draft.") and name[-5:] != ".base"]:
        monkeypatch.delitem(sys.modules, module)
    for folder, head in ((bare, False), (rich, True)):
        path = write_trunk(folder, family, head=head)
        if head:
            write_dflash(folder / f"{family}-DFlash2", dflash_config(trunk.config))
        lm = turbospark.load(path, slots=1, chunk=32)
        answers.append(lm.generate([1, 2, 3], GREEDY).token_ids)
        assert lm.engine.drafter is None
    assert answers[0] == answers[1]
    assert made[0].zeroed == made[1].zeroed
    assert made[0].weights == made[1].weights
    loaded = {n for n in sys.modules if n.startswith("turbospark.draft.")} - {"turbospark.draft.base"}
    assert not loaded


def test_what_needs_a_drafter_says_so(path):
    with pytest.raises(TurbosparkError, match=r"speculative=4 needs a drafter, and llama\.gguf runs without"):
        turbospark.load(path, "reference", slots=1).generate([1], SamplingParams(speculative=4))
    with pytest.raises(TurbosparkError, match="has no mtp drafter"):
        turbospark.load(path, "reference", slots=1, drafter="mtp")


@pytest.mark.parametrize("count", [0, 16, -1])
def test_blocks_that_cannot_be_are_refused_with_the_numbers(count):
    with pytest.raises(TurbosparkError, match=rf"in \[1, 15\].*has {count}"):
        SamplingParams(speculative=count)
