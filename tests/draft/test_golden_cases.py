"""DFlash and DFlash2 against golden cases, every intermediate; TURBOSPARK_VECTORS puts other cases to the same test."""

import os
from pathlib import Path

import numpy as np
import pytest

from turbospark.cache.kv import KVCache
from turbospark.draft.dflash_config import from_hf
from turbospark.draft.dflash_head import DraftHead
from turbospark.draft.dflash_model import DFlashModel
from turbospark.formats import open_checkpoint
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.reference import ReferenceKernels
from turbospark.kernels.rows import Rows
from turbospark.layers.trace import Trace
from turbospark.layers.weights import Weights
from turbospark.quant.tensor import QTensor

ROOT = Path(os.environ.get("TURBOSPARK_VECTORS", Path(__file__).parents[1] / "vectors"))
FOLDERS = sorted(p.parent for p in ROOT.glob("*/cases.npz"))
CASES = [(f, n) for f in FOLDERS for n in sorted({k.split(".")[0] for k in np.load(f / "cases.npz").files if "." in k})]
LIMIT = 1e-4


def noisy(values: np.ndarray) -> np.ndarray:
    """Each value up or down by 1 %: norms undo a common factor."""
    return values * (1 + 0.01 * np.random.default_rng(3).choice([-1.0, 1.0], values.shape))


def relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


class Case:
    """One golden case and the drafter it belongs to; `perturb(name, values)` may change a tensor."""

    def __init__(self, folder: Path, name: str, kernels=None, perturb=lambda name, values: values):
        stored = np.load(folder / "cases.npz")
        self.expected = {k.removeprefix(name + "."): stored[k] for k in stored.files if k.startswith(name + ".")}
        self.kernels = ReferenceKernels() if kernels is None else kernels
        checkpoint = open_checkpoint(folder)
        self.config = from_hf(checkpoint.metadata, folder.name)
        weights = Weights(Perturbed(checkpoint, perturb), lambda n: (n,), self.kernels, Trace(), (128, 128))
        head = self.kernels.weight(QTensor("head", "F32", stored["lm_head"].shape, stored["lm_head"].view(np.uint8)))
        embed = lambda ids: stored["embed_tokens"][ids]
        self.model = DFlashModel(self.config, weights, embed, DraftHead(head, np.arange(head.shape[0])), 512)
        weights.check(lambda name: False)
        self.anchor, self.context = int(self.expected["anchor"]), len(self.expected["taps"])
        c = self.config
        self.caches = [KVCache(self.kernels, 1, 512, c.kv_heads, c.head_dim, c.head_dim, None, 0) for _ in c.layers]
        self.model.observe(self.expected["taps"], Rows.of([(0, 0, [0] * self.context, 1)]), self.caches)
        rows = len(self.expected["hidden"])
        self.block = Rows.of([(0, self.context, [self.anchor] + [c.mask_id] * (rows - 1), 1)])
        self.hidden = self.model.block(self.block, self.caches, np.zeros(1, int))

    def kept(self, which: str) -> np.ndarray:
        cached = [np.asarray(getattr(cache, which)) for cache in self.caches]
        return np.stack([c[0, :, : self.context].swapaxes(0, 1) for c in cached])


class Perturbed:
    def __init__(self, checkpoint, perturb):
        self.tensors, self._checkpoint, self._perturb = checkpoint.tensors, checkpoint, perturb

    def open(self, name: str) -> QTensor:
        tensor = self._checkpoint.open(name)
        values = np.ascontiguousarray(
            self._perturb(name, tensor.data.view(np.float32).reshape(tensor.shape)), np.float32
        )
        return QTensor(name, "F32", tensor.shape, values.view(np.uint8))


BACKENDS = {"reference": ReferenceKernels, "cpu": lambda: CpuKernels(exact=True)}


@pytest.fixture(
    params=[(*case, backend) for case in CASES for backend in BACKENDS],
    ids=[f"{f.name}-{n}-{backend}" for f, n in CASES for backend in BACKENDS],
)
def case(request):
    folder, name, backend = request.param
    return Case(folder, name, BACKENDS[backend]())


def test_there_are_cases():
    assert CASES, f"no cases.npz below {ROOT}"


def test_context_keys_and_values(case):
    assert relative(case.kernels.read(case.expected["taps"], case.model.reading), case.expected["context"]) < LIMIT
    assert relative(case.kept("k"), case.expected["k"]) < LIMIT
    assert relative(case.kept("v"), case.expected["v"]) < LIMIT


def test_hidden_states_and_logits(case):
    assert relative(case.hidden, case.expected["hidden"]) < LIMIT
    assert relative(case.model.logits(case.hidden[1:]), case.expected["logits"]) < LIMIT


def test_selector_candidates_and_scores(case):
    if case.config.selector is None:
        assert "candidates" not in case.expected
        return
    candidates = case.model.candidates(case.hidden[1:])
    np.testing.assert_array_equal(candidates.ids, case.expected["candidates"])
    assert relative(candidates.unary, case.expected["unary"]) < LIMIT
    before = [np.full(case.config.selector.top_k, case.anchor), *candidates.ids[:-1]]
    scores = np.stack([case.model.scores(candidates, i, p) for i, p in enumerate(before)])
    assert relative(scores, case.expected["scores"]) < LIMIT


def test_greedy_proposals(case):
    greedy = lambda position, ids, scores: int(ids[np.argmax(scores)])
    walk = case.model.walk(case.hidden[1:], case.anchor, case.context, greedy)
    assert walk == case.expected["proposals"].tolist()


@pytest.mark.parametrize("folder", FOLDERS, ids=[f.name for f in FOLDERS])
def test_1_percent_on_any_tensor_is_seen(folder):
    name = [n for f, n in CASES if f == folder][-1]
    blind = []
    for tensor in open_checkpoint(folder).tensors:
        case = Case(folder, name, perturb=lambda n, v, t=tensor: noisy(v) if n == t else v)
        seen = [relative(case.hidden, case.expected["hidden"])]
        if case.config.selector is not None:
            candidates = case.model.candidates(case.hidden[1:])
            first = case.model.scores(candidates, 0, np.full(case.config.selector.top_k, case.anchor))
            seen.append(relative(first, case.expected["scores"][0]))
        if max(seen) < LIMIT:
            blind.append(tensor)
    assert not blind
