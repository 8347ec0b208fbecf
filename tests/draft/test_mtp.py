"""MTP heads against transformers' own layers fed by hand: qwen3_5 as HF and as GGUF, DeepSeek-V3; priming, commits."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from transformers import AutoModel, DeepseekV3Config

import turbospark
from tests.parity.harness import difference, some_ids, with_noise
from tests.tiny import deepseek2, mtp, qwen3_5
from tests.tiny.gguf_file import write_gguf
from tests.tiny.safetensors_file import write_hf_folder
from turbospark.cache.session import Session
from turbospark.draft.load import load_drafter
from turbospark.errors import TurbosparkError
from turbospark.kernels.rows import Rows

SLOTS, COUNT, LIMIT = 3, 4, 1e-3
KINDS = ("qwen hf", "qwen gguf", "deepseek", "deepseek shared")


@dataclass
class Case:
    """A trunk with its head, and the head as transformers has it: one layer, its final norm, and what comes before."""

    lm: turbospark.LanguageModel
    layer: torch.nn.Module
    fuse: np.ndarray
    norms: tuple[np.ndarray, np.ndarray]  # of the embedding and of the state, as factors
    embed: np.ndarray
    head: np.ndarray
    eps: float

    def drafter(self):
        return load_drafter("mtp", self.lm.engine.model, self.lm.checkpoint, SLOTS, 32)


def values(lm, name):
    return turbospark.quant.decode(lm.checkpoint.open(name))


def qwen(folder, gguf, change=lambda name, a: a):
    model = qwen3_5.hf_model(False)
    head = mtp.qwen_mtp(model.config)
    stored = {name: change(name, a) for name, a in head.items()}
    layers = model.config.num_hidden_layers
    if gguf:
        metadata = qwen3_5.gguf_metadata(model.config)
        metadata |= {"qwen35.block_count": layers + 1, "qwen35.nextn_predict_layers": 1}
        arrays = qwen3_5.gguf_arrays(model) | mtp.qwen_mtp_gguf(stored, layers)
        path = write_gguf(folder / "m.gguf", metadata, arrays)
    else:
        config = {**model.config.to_dict(), "mtp_num_hidden_layers": 1}
        path = write_hf_folder(folder / "hf", config, qwen3_5.hf_arrays(model) | stored)
    config = qwen3_5.hf_config(False, num_hidden_layers=1, layer_types=["full_attention"])
    layer = AutoModel.from_config(config, attn_implementation="eager").float().eval()
    names = {name.removeprefix("mtp."): a for name, a in head.items() if "layers" in name or name == "mtp.norm.weight"}
    fill(layer, names)
    norms = 1 + head["mtp.pre_fc_norm_embedding.weight"], 1 + head["mtp.pre_fc_norm_hidden.weight"]
    arrays = qwen3_5.hf_arrays(model)
    lm = turbospark.load(path, "reference", slots=SLOTS)
    embed, output = arrays["model.embed_tokens.weight"], arrays["lm_head.weight"]
    return Case(lm, layer, head["mtp.fc.weight"], norms, embed, output, config.rms_norm_eps)


def deepseek(folder, shared, change=lambda name, a: a):
    trunk = {**deepseek2.V3, "num_nextn_predict_layers": 1}
    arrays, head = deepseek2.weights(trunk), mtp.deepseek_mtp(trunk, shared=shared)
    stored = {name: change(name, a) for name, a in head.items()}
    lm = turbospark.load(write_hf_folder(folder / "hf", trunk, arrays | stored), "reference", slots=SLOTS)
    config = DeepseekV3Config(**{**trunk, "num_hidden_layers": 1, "first_k_dense_replace": 0})
    layer = AutoModel.from_config(config, attn_implementation="eager").float().eval()
    prefix = f"model.layers.{trunk['num_hidden_layers']}."
    head = {name.removeprefix(prefix): a for name, a in head.items()}
    own = ("eh_proj", "enorm", "hnorm", "shared_head", "embed_tokens")
    block = {f"layers.0.{name}": a for name, a in head.items() if not name.startswith(own)}
    fill(layer, {**block, "norm.weight": head["shared_head.norm.weight"]})
    embed = head.get("embed_tokens.weight", arrays["model.embed_tokens.weight"])
    output = head.get("shared_head.head.weight", arrays["lm_head.weight"])
    return Case(
        lm,
        layer,
        head["eh_proj.weight"],
        (head["enorm.weight"], head["hnorm.weight"]),
        embed,
        output,
        config.rms_norm_eps,
    )


def fill(layer, arrays):
    """Experts come one by one and are stacked where transformers holds them so; every parameter is given but embed."""
    given = dict(arrays)
    experts = sorted({int(n.split(".")[4]) for n in given if ".experts." in n})
    if experts:
        one = lambda e, role: given.pop(f"layers.0.mlp.experts.{e}.{role}_proj.weight")
        both = [np.concatenate([one(e, "gate"), one(e, "up")]) for e in experts]
        given["layers.0.mlp.experts.gate_up_proj"] = np.stack(both)
        given["layers.0.mlp.experts.down_proj"] = np.stack([one(e, "down") for e in experts])
    result = layer.load_state_dict({name: torch.from_numpy(a) for name, a in given.items()}, strict=False)
    assert result.missing_keys == ["embed_tokens.weight"]
    assert not result.unexpected_keys


def make(kind, folder, **options):
    if kind.startswith("qwen"):
        return qwen(folder, kind == "qwen gguf", **options)
    return deepseek(folder, kind == "deepseek shared", **options)


@pytest.fixture(scope="module", params=KINDS)
def case(request, tmp_path_factory):
    return make(request.param, tmp_path_factory.mktemp("mtp"))


def states(lm, ids):
    """The trunk's states after its final norm, [T, H]."""
    model = lm.engine.model
    session = Session(model.caches(1, 64), 1, model.max_context)
    rows = Rows.of([(0, 0, ids, len(ids))])
    session.begin(rows)
    return model(rows, session.layers).hidden


def expected(case, ids, count, hidden=None, order=(0, 1)):
    """Logits [count, vocab] of `count` proposals after the last id, each made from the best of the one before."""
    hidden, tokens, found = list(states(case.lm, ids)[:-1] if hidden is None else hidden), list(ids[1:]), []
    rms = lambda x, w: x / np.sqrt(np.mean(x**2) + case.eps) * w
    while len(found) < count:
        halves = [
            (rms(case.embed[t], case.norms[0]), rms(h, case.norms[1])) for h, t in zip(hidden, tokens, strict=True)
        ]
        x = np.stack([np.concatenate([pair[o] for o in order]) @ case.fuse.T for pair in halves])
        with torch.no_grad():
            out = case.layer(inputs_embeds=torch.from_numpy(x)[None].float(), use_cache=False).last_hidden_state
        hidden.append(out[0, -1].numpy())
        found.append(case.head @ hidden[-1])
        tokens.append(int(found[-1].argmax()))
    return np.stack(found)


class Watch:
    """A drafter whose logits are kept, row by row."""

    def __init__(self, case):
        self.case, self.drafter = case, case.drafter()
        self.kept = []
        logits = self.drafter.model.logits
        self.drafter.model.logits = lambda state: self.kept.append(logits(state)) or self.kept[-1]

    def observe(self, slot, ids, start, stop):
        rows = Rows.of([(slot, start, ids[start:stop], 1)])
        self.drafter.observe(rows, {"final": states(self.case.lm, ids)[start:stop]})

    def propose(self, ids, slot=0, count=COUNT):
        """Logits [count, vocab] of the proposals after the last id."""
        self.kept.clear()
        greedy = lambda slot, position, ids, scores: int(ids[scores.argmax()])
        proposals = self.drafter.propose(Rows.of([(slot, len(ids) - 1, ids[-1:], 1)]), [count], greedy)
        assert proposals == [[int(row[0].argmax()) for row in self.kept]]
        return np.stack([row[0] for row in self.kept]) if self.kept else None

    def after(self, ids, cuts=(), slot=0):
        """The proposals of a fresh slot that saw all ids but the last, in pieces."""
        self.drafter.admit(slot, ids, None, 0)
        bounds = [0, *cuts, len(ids) - 1]
        for start, stop in pairwise(bounds):
            self.observe(slot, ids, start, stop)
        return self.propose(ids, slot)


@pytest.mark.parametrize("length", [2, 3, 16, 17, 18, 45])
def test_every_proposal_agrees_with_transformers(case, length):
    ids = some_ids(length, 90, length)
    assert difference(Watch(case).after(ids), expected(case, ids, COUNT)) < LIMIT


def test_it_matters_which_state_stands_beside_which_token(case):
    ids = some_ids(12, 90)
    ours, all_states = Watch(case).after(ids), states(case.lm, ids)
    assert difference(ours, expected(case, ids, COUNT, hidden=all_states[1:])) > 0.1
    assert difference(ours, expected(case, ids, COUNT, order=(1, 0))) > 0.1


def test_pieces_make_no_difference(case):
    ids = some_ids(40, 90)
    whole = Watch(case).after(ids)
    for cuts in ([1], [17], [39 - 1], range(1, 39), [5, 6, 30]):
        np.testing.assert_array_equal(Watch(case).after(ids, list(cuts)), whole)


@pytest.mark.parametrize("kind", ["qwen hf", "deepseek shared"])
def test_noise_on_any_tensor_of_the_head_is_seen(kind, tmp_path):
    case, names = make(kind, tmp_path), []
    texts = [some_ids(20, 90, seed) for seed in range(8)]  # enough that every expert is sent to
    right = [expected(case, ids, COUNT) for ids in texts]
    make(kind, tmp_path, change=lambda name, a: names.append(name) or a)
    for name in names:
        # a bias that only chooses may choose the same in spite of noise
        noise = np.negative if name.endswith("bias") else with_noise
        watch = Watch(make(kind, tmp_path, change=lambda n, a, name=name, f=noise: f(a) if n == name else a))
        assert any(difference(watch.after(ids), r) > LIMIT for ids, r in zip(texts, right, strict=True)), name


@pytest.mark.parametrize("accepted", range(COUNT + 1))
def test_after_a_partial_commit_the_head_stands_on_the_last_kept_row(case, accepted):
    ids = some_ids(20, 90)
    watch = Watch(case)
    proposed = watch.after(ids).argmax(-1).tolist()
    longer = [*ids, *proposed[:accepted], 7]
    watch.observe(0, longer, len(ids) - 1, len(longer) - 1)
    np.testing.assert_array_equal(watch.propose(longer), Watch(case).after(longer))


def test_several_sequences_at_once_propose_as_each_does_alone(case):
    texts = [some_ids(n, 90, n) for n in (9, 22, 3)]
    alone = [Watch(case).after(ids).argmax(-1).tolist() for ids in texts]
    drafter = case.drafter()
    for slot, ids in enumerate(texts):
        drafter.admit(slot, ids, None, 0)
        drafter.observe(Rows.of([(slot, 0, ids[:-1], 1)]), {"final": states(case.lm, ids)[:-1]})
    anchors = Rows.of([(slot, len(ids) - 1, ids[-1:], 1) for slot, ids in enumerate(texts)])
    greedy = lambda slot, position, ids, scores: int(ids[scores.argmax()])
    assert drafter.propose(anchors, [4, 0, 2], greedy) == [alone[0], [], alone[2][:2]]


@pytest.mark.parametrize("source", [0, 1])
@pytest.mark.parametrize("reused", [1, 5, 16, 18, 19])
def test_rows_of_another_slot_are_taken_over(case, source, reused):
    ids = some_ids(20, 90)
    longer = [*ids[:reused], *ids[reused : reused + 1], *some_ids(6, 90, 4)]
    watch = Watch(case)
    watch.after(ids, slot=source)
    watch.observe(source, ids, 19, 20)
    watch.drafter.admit(0, longer, source, reused)
    watch.observe(0, longer, reused, len(longer) - 1)
    np.testing.assert_array_equal(watch.propose(longer), Watch(case).after(longer))


def test_a_source_that_never_saw_the_rows_gives_nothing_to_propose_from(case):
    ids = some_ids(20, 90)
    watch = Watch(case)
    watch.drafter.admit(1, ids, 0, 10)
    watch.observe(1, ids, 10, 19)
    assert watch.propose(ids, slot=1) is None


def test_rows_left_out_are_an_error(case):
    ids = some_ids(20, 90)
    watch = Watch(case)
    watch.drafter.admit(0, ids, None, 0)
    watch.observe(0, ids, 0, 5)
    with pytest.raises(RuntimeError, match=r"rows from 7 observed, the head stands at 5"):
        watch.observe(0, ids, 7, 9)
    with pytest.raises(RuntimeError, match=r"an anchor at 19, the head stands at 5"):
        watch.propose(ids)


def test_more_than_one_mtp_layer_is_refused_with_the_number(tmp_path):
    trunk = {**deepseek2.V3, "num_nextn_predict_layers": 2}
    arrays = deepseek2.weights(trunk) | mtp.deepseek_mtp(trunk)
    lm = turbospark.load(write_hf_folder(tmp_path / "hf", trunk, arrays), "reference", slots=1)
    with pytest.raises(TurbosparkError, match="2 MTP layers, 1 is implemented"):
        load_drafter("mtp", lm.engine.model, lm.checkpoint, 1, 32)
