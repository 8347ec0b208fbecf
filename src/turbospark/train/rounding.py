"""A finished drafter's GGUF file, its matrices rounded to 4 bits with regard to what they multiply.

python -m turbospark.train.rounding TRUNK FOLDER... --out FILE

Of several folders the mean of the weights is taken. As in GPTQ (arXiv 2210.17323), columns are rounded one after the
other, and what one's rounding changes in the product is made good by those to come. Rows come from conversations that
the trunk writes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turbospark.draft.dflash_config import from_hf
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.quant.blocks import store
from turbospark.quant.q4 import LAYOUT_1, pack_halves
from turbospark.quant.tensor import QTensor
from turbospark.tokenizer import load_tokenizer
from turbospark.train.data import Corpus, read
from turbospark.train.dflash import DFlash2
from turbospark.train.export import read_folder
from turbospark.train.gguf import write_gguf
from turbospark.train.measure import restored
from turbospark.train.settings import Settings
from turbospark.train.trunk import open_trunk
from turbospark.train.writer import chat_of
from turbospark.train.writing import starts, write

BLOCK, TOP = 32, 15  # values that share a scale, the largest code
DAMPING = 0.01  # of the mean square, added to each column's, so that columns that never speak are no trouble
REACH = (1.0, 0.95, 0.9, 0.85, 0.8)  # parts of a block's range that its codes may span


@torch.no_grad()
def second_moments(model: DFlash2, corpus: Corpus, anchors: int) -> dict[str, Tensor]:
    """The sum of x x^T [in, in] over the rows x that each matrix multiplies, by the matrix's name."""
    found: dict[str, Tensor] = {}

    def heard(name: str) -> Any:
        def hook(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            x = given[0].reshape(-1, given[0].shape[-1]).float()
            found[name] = found.get(name, 0) + x.T @ x

        return hook

    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    hooks = [m.register_forward_pre_hook(heard(f"{n}.weight")) for n, m in linear]
    for row in range(len(corpus.tokens)):
        batch = corpus.blocks(torch.tensor([row], device=corpus.tokens.device), anchors, model.config.block, 1.0)
        guess = model.guess(batch.taps, batch.blocks)
        model.scores(guess, torch.cat([batch.blocks.anchors[..., None], batch.labels[..., :-1]], -1))
    for hook in hooks:
        hook.remove()
    return found


def rounded(name: str, values: np.ndarray, moments: Tensor) -> QTensor:
    """The matrix [out, in] in Q4_1, near in its products with rows of these second moments [in, in]."""
    left = torch.from_numpy(np.ascontiguousarray(values, np.float32)).double()
    columns = left.shape[1]
    if columns % BLOCK:
        raise TurbosparkError("bad_columns", f"{name}: Q4_1 needs a multiple of {BLOCK} columns, has {columns}")
    moments = moments.double().cpu()
    moments = moments + (DAMPING * moments.diagonal().mean() + 1e-12) * torch.eye(columns, dtype=torch.float64)
    # row j of the inverse's factor: how far an error in column j is made good by each column behind it
    spread = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(moments)), upper=True)
    steps, lows, codes = [], [], torch.empty_like(left)
    for start in range(0, columns, BLOCK):
        low, step = _grid(left[:, start : start + BLOCK])
        for j in range(start, start + BLOCK):
            codes[:, j] = _codes(left[:, j], low, step)
            error = (left[:, j] - (codes[:, j] * step + low)) / spread[j, j]
            left[:, j + 1 :] -= error[:, None] * spread[j, j + 1 :]
        steps.append(step)
        lows.append(low)
    scales = [torch.stack(part, -1).numpy() for part in (steps, lows)]
    whole = codes.to(torch.uint8).numpy().reshape(len(left), -1, BLOCK)
    data = store(LAYOUT_1, whole.shape[:-1], d=scales[0], m=scales[1], q=pack_halves(whole))
    return QTensor(name, "Q4_1", values.shape, data.reshape(len(left), -1))


def _grid(block: Tensor) -> tuple[Tensor, Tensor]:
    """The float16 low and step [out] of the codes that are nearest to the values [out, BLOCK]."""
    low, high = block.amin(-1), block.amax(-1)
    best, found = torch.full_like(low, float("inf")), (low, high)
    for reach in REACH:
        cut = (high - low) * (1 - reach) / 2
        near, step = ((v).half().double() for v in (low + cut, (high - low - 2 * cut) / TOP))
        codes = _codes(block, near[:, None], step[:, None])
        error = (codes * step[:, None] + near[:, None] - block).square().sum(-1)
        better = error < best
        best = torch.where(better, error, best)
        found = torch.where(better, near, found[0]), torch.where(better, step, found[1])
    return found


def _codes(values: Tensor, low: Tensor, step: Tensor) -> Tensor:
    return ((values - low) / step.clamp(min=1e-30)).round().clamp(0, TOP)


def mean_of(folders: Sequence[Path]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Configuration and draft vocabulary of the first, and the mean of all weights."""
    declared, first = read_folder(folders[0])
    others = [read_folder(folder)[1] for folder in folders[1:]]
    mean = lambda name: sum(t[name] for t in [first, *others]) / (1 + len(others))
    return declared, {name: v if name == "d2t" else np.asarray(mean(name)) for name, v in first.items()}


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trunk")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--top-k", type=int, help="candidates of a row, those of the first folder if left out")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--anchors", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args(argv)
    declared, tensors = mean_of(args.folders)
    config = from_hf(declared, str(args.folders[0]))
    if config.selector is not None and args.top_k is not None:
        config = replace(config, selector=replace(config.selector, top_k=args.top_k))
    trunk, tokenizer = open_trunk(args.trunk, args.device, args.length), load_tokenizer(open_checkpoint(args.trunk))
    count = args.sequences
    told = Settings(
        steps=1, seed=args.seed, sequences=count, together=count, length=args.length, made=0.8,
        code=0.35, arithmetic=0.35, prose=0.25,
    )  # fmt: skip
    made = write(trunk, chat_of(tokenizer), starts(told, tokenizer), told, print)
    torch.manual_seed(args.seed)
    corpus = read(trunk, made, config.taps)
    moments = second_moments(restored(config, tensors, trunk, args.length), corpus, args.anchors)
    write_gguf(args.out, config, in_few_bits(tensors, moments), codebooks="Q8_0")


def in_few_bits(tensors: Mapping[str, np.ndarray], moments: Mapping[str, Tensor]) -> dict[str, Any]:
    """The tensors, those that have second moments rounded."""
    return {n: rounded(n, v, moments[n]) if n in moments else v for n, v in tensors.items()}


if __name__ == "__main__":
    main()
