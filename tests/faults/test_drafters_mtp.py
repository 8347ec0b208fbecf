"""Faults 27, 28: an MTP head's norms read by the convention of their file; its cache primed from row 0."""

import numpy as np
import pytest

import turbospark
from tests.draft.test_mtp import KINDS, Watch, expected, make, some_ids
from tests.parity.harness import difference
from tests.tiny import mtp, qwen3_5
from tests.tiny.oracle import params, run
from tests.tiny.safetensors_file import write_hf_folder
from tests.tiny.trunks import write_trunk
from turbospark.draft.load import load_drafter
from turbospark.engine.loop import Engine
from turbospark.errors import TurbosparkError
from turbospark.kernels.rows import Rows

IDS = some_ids(30, 90, 2)
NORMS = [name for name, a in mtp.qwen_mtp(qwen3_5.hf_config(False)).items() if a.ndim == 1]


def test_raw_and_converted_files_agree(tmp_path):
    raw, converted = (Watch(make(kind, tmp_path)).after(IDS) for kind in ("qwen hf", "qwen gguf"))
    assert difference(raw, converted) < 1e-4


@pytest.mark.parametrize("kind", ["qwen hf", "qwen gguf"])
@pytest.mark.parametrize("name", NORMS)
def test_a_norm_shifted_once_more_or_once_less_would_be_seen(tmp_path, kind, name):
    assert len(NORMS) == 7
    right = expected(make(kind, tmp_path), IDS, 2)
    for shift in (-1, 1):
        wrong = make(kind, tmp_path, change=lambda n, a, s=shift: a + np.float32(s) if n == name else a)
        assert difference(Watch(wrong).after(IDS)[:2], right) > 0.02


def test_a_raw_head_serves_the_converted_trunk(tmp_path):
    """The convention goes with the file of the head, not with that of the trunk."""
    converted = make("qwen gguf", tmp_path).lm
    case = make("qwen hf", tmp_path)
    path = case.lm.checkpoint.path
    drafter = load_drafter(path, converted.engine.model, converted.checkpoint, 1, 32)
    hidden = np.random.default_rng(0).standard_normal((5, 48)).astype(np.float32)
    rows = Rows.of([(0, 0, IDS[:5], 1)])
    own = case.drafter()
    both = [d.model(rows.ids, hidden, rows, d.cache) for d in (drafter, own)]
    assert difference(*both) < 1e-4


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_that_is_not_primed_would_be_seen(tmp_path, kind):
    case = make(kind, tmp_path)
    right = expected(case, IDS, 1)
    late = Watch(case)
    late.drafter.admit(0, IDS, None, 0)
    late.observe(0, IDS, 0, len(IDS) - 1)
    head = late.drafter.heads[0]
    assert head.length == len(IDS) - 2  # every row of the prompt but the last, which waits for its successor
    assert difference(late.propose(IDS)[:1], right) < 1e-3
    late.drafter.admit(0, IDS, None, 0)
    late.observe(0, IDS, 0, len(IDS) - 1)
    late.drafter.cache.k[...] = 0
    late.drafter.cache.v[...] = 0
    assert difference(late.propose(IDS)[:1], right) > 0.02


@pytest.mark.parametrize("family", ["hybrid", "deepseek2"])
def test_a_prompt_of_one_token_has_nothing_to_propose_from_at_first(tmp_path, family):
    lm = turbospark.load(write_trunk(tmp_path, family), "reference", slots=1, chunk=32)
    model = lm.engine.model
    drafter = load_drafter("mtp", model, lm.checkpoint, 1, 32)
    engine = Engine(model, 1, 32, drafter)
    said, propose = [], drafter.propose
    drafter.propose = lambda *args: said.append(propose(*args)) or said[-1]
    request = run(engine, engine.submit([3], params(model, max_new=12, speculative=3)))
    alone = Engine(model, 1, 32)
    assert request.output == run(alone, alone.submit([3], params(model, max_new=12))).output
    assert said[0] == [[]]
    assert all(len(walk) > 0 for walk in said[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n, a: a[:, :-1] if n == "mtp.fc.weight" else a, r"mtp.fc.weight has shape \[48, 95\].*\[48, 96\]"),
        (
            lambda n, a: a[:-1] if n.endswith("q_proj.weight") else a,
            r"q_proj.weight has shape \[127, 48\].*\[128, 48\]",
        ),
    ],
)
def test_heads_of_another_shape_are_refused_with_both(tmp_path, change, said):
    with pytest.raises(TurbosparkError, match=said):
        make("qwen hf", tmp_path, change=change).drafter()


@pytest.mark.parametrize("name", [n for n in mtp.qwen_mtp(qwen3_5.hf_config(False)) if n != "mtp.fc.weight"])
def test_a_missing_or_left_over_tensor_of_a_head_is_named(tmp_path, name):
    model = qwen3_5.hf_model(False)
    config = {**model.config.to_dict(), "mtp_num_hidden_layers": 1}
    head = mtp.qwen_mtp(model.config)
    renamed = {("mtp.other.weight" if n == name else n): a for n, a in head.items()}
    for changed, told in (({n: a for n, a in head.items() if n != name}, name), (renamed, name)):
        path = write_hf_folder(tmp_path / "hf", config, qwen3_5.hf_arrays(model) | changed)
        lm = turbospark.load(path, "reference", slots=1)
        with pytest.raises(TurbosparkError, match=told.replace(".", r"\.")):
            load_drafter("mtp", lm.engine.model, lm.checkpoint, 1, 32)
    path = write_hf_folder(tmp_path / "hf", config, qwen3_5.hf_arrays(model) | head | {"mtp.other.weight": head[name]})
    lm = turbospark.load(path, "reference", slots=1)
    with pytest.raises(TurbosparkError, match=r"no place.*mtp\.other\.weight"):
        load_drafter("mtp", lm.engine.model, lm.checkpoint, 1, 32)
