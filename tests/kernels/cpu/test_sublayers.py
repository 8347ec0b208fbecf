"""Fused sublayers give the bits of the single operations they are made of, for any rows and any threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from turbospark import quant
from turbospark.cache.kv import KVCache
from turbospark.cache.latent import LatentCache
from turbospark.config.model import MLA, Attention, Rope
from turbospark.kernels.api import Kernels
from turbospark.kernels.cpu import threads
from turbospark.kernels.cpu.backend import CpuKernels
from turbospark.kernels.parts import AttentionBranch, GatedMLP, Heads, Latents, Norm
from turbospark.kernels.rows import Rows
from turbospark.quant.tensor import QTensor

HIDDEN, WIDTH, ROWS = 288, 160, 11
MIXES = {"Q8_0": ("Q8_0",) * 3, "Q4_1 and Q8_0": ("Q4_1", "Q8_0", "Q4_1"), "F32 and Q4_0": ("F32", "Q4_0", "F32")}
silent = lambda name, value: None


@pytest.fixture(params=["quantised", "exact"])
def kernels(request):
    return CpuKernels(exact=request.param == "exact")


def random(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * scale).astype(np.float32)


def matrix(kernels: Kernels, out: int, columns: int, format: str = "Q8_0", seed: int = 1):
    return kernels.weight(quant.encode(random(out, columns, seed=seed, scale=columns**-0.5), format))


def norm(width: int, seed: int = 7, eps: float = 1e-5) -> Norm:
    return Norm(1 + random(width, seed=seed, scale=0.3), eps)


def same(fused, composed) -> None:
    """`fused` and `composed` of all rows; then of parts of them; then of all with one thread."""
    whole = fused(slice(0, ROWS))
    np.testing.assert_array_equal(whole, composed(slice(0, ROWS)))
    alone = [fused(slice(i, i + 1)) for i in range(ROWS)]
    np.testing.assert_array_equal(np.concatenate(alone), whole)
    np.testing.assert_array_equal(np.concatenate([fused(slice(0, 4)), fused(slice(4, ROWS))]), whole)
    before = threads.count()
    try:
        threads.set_count(1 if before > 1 else 2)
        np.testing.assert_array_equal(fused(slice(0, ROWS)), whole)
    finally:
        threads.set_count(before)


@pytest.mark.parametrize("formats", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_project(kernels, formats, normed, biased):
    x, before = random(ROWS, HIDDEN) * 3, norm(HIDDEN) if normed else None
    outs = (48, 20, 7)
    weights = [matrix(kernels, n, HIDDEN, f, seed=n) for n, f in zip(outs, formats, strict=True)]
    biases = [random(n, seed=n) if biased and n != 20 else None for n in outs]
    group = kernels.group(weights, biases)
    joined = lambda parts: np.concatenate(parts, axis=1)
    same(
        lambda rows: joined(kernels.project(x[rows], before, group)),
        lambda rows: joined(Kernels.project(kernels, x[rows], before, group)),
    )


@pytest.mark.parametrize("normed", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_merge(kernels, normed, biased):
    x, y, after = random(ROWS, HIDDEN), random(ROWS, WIDTH, seed=1), norm(HIDDEN) if normed else None
    bias = random(HIDDEN, seed=9) if biased else None
    group = kernels.group([matrix(kernels, HIDDEN, WIDTH, "Q4_0")], [bias])

    def composed(rows):
        out = kernels.linear(y[rows], group.pairs[0][0])
        out = out if bias is None else out + bias
        return x[rows] + (out if after is None else kernels.norm(out, after.weight, after.eps))

    if biased and not normed:  # the bias comes after the stream here: another rounding
        np.testing.assert_allclose(kernels.merge(x, y, group, after), composed(slice(0, ROWS)), atol=1e-6)
        composed = lambda rows: kernels.merge(x[rows], y[rows], group, after)
    same(lambda rows: kernels.merge(x[rows], y[rows], group, after), composed)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
@pytest.mark.parametrize("after", [None, norm(HIDDEN, 8)])
def test_feed_forward(kernels, activation, after):
    x, before = random(ROWS, HIDDEN), norm(HIDDEN)
    weights = (matrix(kernels, WIDTH, HIDDEN, "Q4_1"), matrix(kernels, WIDTH, HIDDEN, "Q8_0", 2))
    mlp = GatedMLP(*weights, matrix(kernels, HIDDEN, WIDTH, "Q8_0", 3), activation, silent)
    same(
        lambda rows: kernels.feed_forward(x[rows], before, mlp, after),
        lambda rows: Kernels.feed_forward(Composed(kernels), x[rows], before, mlp, after),
    )
    same(
        lambda rows: kernels.gated_mlp(x[rows], None, mlp),
        lambda rows: Kernels.gated_mlp(kernels, x[rows], None, mlp),
    )


def test_a_feed_forward_called_in_two_ways_keeps_them_apart(kernels):
    x, weights = random(2, HIDDEN), [matrix(kernels, WIDTH, HIDDEN, seed=s) for s in (1, 2)]
    mlp = GatedMLP(*weights, matrix(kernels, HIDDEN, WIDTH, seed=3), "silu", silent)
    first = kernels.feed_forward(x, norm(HIDDEN), mlp)
    kernels.gated_mlp(x, None, mlp), kernels.feed_forward(x, norm(HIDDEN, 9), mlp, norm(HIDDEN, 10))
    np.testing.assert_array_equal(kernels.feed_forward(x, norm(HIDDEN), mlp), first)


class Composed:
    """A backend all of whose sublayers are the default ones."""

    def __init__(self, kernels: CpuKernels):
        self._kernels = kernels

    def __getattr__(self, name: str):
        if name in ("gated_mlp", "project", "merge", "attend", "latent", "attention_branch"):
            return lambda *arguments: getattr(Kernels, name)(self, *arguments)
        return getattr(self._kernels, name)


ATTENTION = Attention(6, 2, 24, Rope(1000.0, 16, False), 24**-0.5, qk_norm=True)
HEADS = {
    "head norms and rotation": ATTENTION,
    "interleaved, no norms": replace(ATTENTION, rope=Rope(1000.0, 24, True), qk_norm=False),
    "no rotation": replace(ATTENTION, rope=None),
    "output gate": replace(ATTENTION, gated=True),
    "window and softcap": replace(ATTENTION, window=5, softcap=1.5),
    "one kv head": replace(ATTENTION, kv_heads=1),
}


class Slots:
    """Two slots with some rows in them; `rows` are further ones of both."""

    def __init__(self, make):
        self.make = make
        self.rows = Rows.of([(1, 70, [0] * 4, 4), (0, 5, [0] * 7, 7)])

    def filled(self, append):
        cache = self.make()
        append(cache, Rows.of([(0, 0, [0] * 5, 5), (1, 0, [0] * 70, 70)]))
        return cache

    def part(self, rows: slice) -> Rows:
        spans = [range(max(s.start, rows.start), min(s.stop, rows.stop)) for s in self.rows.spans]
        return self.rows.keep([span for span in spans if len(span)])


@pytest.mark.parametrize("config", HEADS.values(), ids=HEADS)
def test_attention_with_and_without_its_projections(kernels, config):
    c, x = config, random(ROWS, HIDDEN, seed=3)
    head_norm = lambda seed: norm(c.head_dim, seed, 1e-6) if c.qk_norm else None
    table = None if c.rope is None else kernels.rotary(c.rope, 128)
    heads = Heads(c, head_norm(4), head_norm(5), table, silent)
    q, kv = c.heads * c.head_dim, c.kv_heads * c.head_dim
    widths = (q * (2 if c.gated else 1), kv, kv)
    qkv = kernels.group([matrix(kernels, n, HIDDEN, seed=i) for i, n in enumerate(widths)])
    o = kernels.group([matrix(kernels, HIDDEN, q, "F16", 6)])
    branch = AttentionBranch(norm(HIDDEN), qkv, heads, o, norm(HIDDEN, 8))
    slots = Slots(lambda: KVCache(kernels, 2, 128, c.kv_heads, c.head_dim, c.head_dim, c.window, 80))
    past = random(75, c.kv_heads, c.head_dim, seed=2)
    fill = lambda cache, rows: cache.append(rows, past, -past)

    cache = slots.filled(fill)  # rows run in their order, or again: what they write is the same

    def of(backend):
        return lambda rows: backend.attention_branch(x[rows], slots.part(rows), cache, branch)

    same(of(kernels), of(Composed(kernels)))

    def between(backend):
        q, k, v = kernels.project(x, branch.before, qkv)
        return lambda rows: backend.attend(q[rows], k[rows], v[rows], slots.part(rows), cache, heads)

    same(between(kernels), between(Composed(kernels)))
    assert cache.k[0, :, 5:12].all()
    assert not cache.k[0, :, 12:].any()


def test_attend_refuses_more_rows_than_a_ring_has_room_for(kernels):
    c = replace(ATTENTION, window=8, rope=None, qk_norm=False)
    cache = KVCache(kernels, 1, 256, c.kv_heads, c.head_dim, c.head_dim, 8, 16)
    count = 17
    rows, kv = Rows.of([(0, 0, [0] * count, count)]), random(count, 48)
    with pytest.raises(RuntimeError, match="17 rows"):
        kernels.attend(random(count, 144), kv, kv, rows, cache, Heads(c, None, None, None, silent))


@pytest.mark.parametrize("interleaved", [True, False])
@pytest.mark.parametrize("formats", [("F32", "F32"), ("Q8_0", "Q4_0"), ("F16", "Q8_0")], ids=str)
def test_latent_attention(kernels, formats, interleaved):
    c = MLA(5, None, 64, 32, 20, Rope(1000.0, 6, interleaved), 0.2, 1e-6)

    def weights(n: int, k: int, format: str, seed: int) -> QTensor:
        return quant.encode(random(c.heads, n, k, seed=seed, scale=k**-0.5), format)

    k_up = kernels.weight(weights(c.latent, c.nope_dim, formats[0], 1))
    v_up = kernels.weight(weights(c.value_dim, c.latent, formats[1], 2))
    latents = Latents(c, norm(c.latent), k_up, v_up, kernels.rotary(c.rope, 128), silent)
    q, row = random(ROWS, c.heads * (c.nope_dim + 6), seed=3), random(ROWS, c.latent + 6, seed=4)
    past = random(75, 1, c.latent + 6, seed=5)
    slots = Slots(lambda: LatentCache(kernels, 2, 128, c.latent, 6))
    cache = slots.filled(lambda cache, rows: cache.append(rows, past))
    same(
        lambda rows: kernels.latent(q[rows], row[rows], slots.part(rows), cache, latents),
        lambda rows: Kernels.latent(kernels, q[rows], row[rows], slots.part(rows), cache, latents),
    )


def test_a_block_format_that_has_no_kernel_runs_by_the_single_operations():
    kernels = CpuKernels()
    x, before = random(3, 256), norm(256)
    weight = kernels.weight(QTensor("w", "Q2_K", (32, 256), random(32, 84, seed=5).view(np.uint8)[:, :84] & 0x3B))
    group = kernels.group([weight, matrix(kernels, 8, 256)])
    found = kernels.project(x, before, group)
    n = kernels.norm(x, before.weight, before.eps)
    for out, (w, _) in zip(found, group.pairs, strict=True):
        np.testing.assert_array_equal(out, kernels.linear(n, w))


def test_outputs_stay_as_they_are_while_other_rows_run(kernels):
    """A tap keeps a layer's output: nothing may write to it later."""
    x, weights = random(1, HIDDEN), [matrix(kernels, WIDTH, HIDDEN, seed=s) for s in (1, 2)]
    mlp = GatedMLP(*weights, matrix(kernels, HIDDEN, WIDTH, seed=3), "silu", silent)
    group = kernels.group(weights)
    kept, copies = [], []
    for _ in range(4):
        x = kernels.feed_forward(x, norm(HIDDEN), mlp)
        kept += [x, *kernels.project(x, None, group)]
        copies += [array.copy() for array in kept[-3:]]
    for array, copy in zip(kept, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
