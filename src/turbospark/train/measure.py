"""Accepted length of a finished drafter in other number formats, at other block sizes and of more candidates.

python -m turbospark.train.measure TRUNK FOLDER [--device NAME]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turbospark import quant
from turbospark.draft.dflash_config import DFlashConfig, from_hf
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import load_tokenizer
from turbospark.train.dflash import DFlash2
from turbospark.train.export import read_folder
from turbospark.train.loop import measured
from turbospark.train.trunk import Trunk, open_trunk
from turbospark.train.writer import chat_of
from turbospark.train.writing import held_out

MIXES = {
    "BF16": ("BF16", "BF16"),
    "Q8_0": ("Q8_0", "Q8_0"),
    "Q4_1, codebooks Q8_0": ("Q4_1", "Q8_0"),
    "Q4_0, codebooks Q8_0": ("Q4_0", "Q8_0"),
    "Q4_1": ("Q4_1", "Q4_1"),
    "Q4_0": ("Q4_0", "Q4_0"),
}
BLOCKS = (3, 4, 5, 6, 7, 8)
CANDIDATES = (12, 16, 24)


def rounded(tensors: Mapping[str, np.ndarray], matrices: str, codebooks: str) -> dict[str, np.ndarray]:
    """The values that a file in these formats holds; vectors and convolution kernels stay as they are."""
    through = lambda v, f: np.array(quant.decode(quant.encode(v.astype(np.float32), f)))
    formats = {n: codebooks if n.endswith("codebook") else matrices for n, v in tensors.items() if is_matrix(n, v)}
    return {n: through(v, formats[n]) if n in formats else v for n, v in tensors.items()}


def is_matrix(name: str, values: np.ndarray) -> bool:
    return values.ndim == 2 and not name.endswith("base_kernel")


def restored(config: DFlashConfig, tensors: Mapping[str, np.ndarray], trunk: Trunk, positions: int) -> DFlash2:
    """The module of a drafter read from its folder."""
    ids = None
    if "d2t" in tensors:
        ids = torch.from_numpy(tensors["d2t"] + np.arange(len(tensors["d2t"])))
    model = DFlash2(config, trunk.embedding, trunk.head, positions, ids)
    state = {n: torch.from_numpy(np.ascontiguousarray(v)) for n, v in tensors.items() if n != "d2t"}
    model.load_state_dict(state)
    return model.to(trunk.device).eval()


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trunk")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--answer", type=int, default=600)
    parser.add_argument("--held-out", type=int)
    args = parser.parse_args(argv)
    trunk = open_trunk(args.trunk, args.device, args.answer + 512)
    tokenizer = load_tokenizer(open_checkpoint(args.trunk))
    declared, tensors = read_folder(args.folder)
    config = from_hf(declared, str(args.folder))
    corpus, answers = held_out(trunk, chat_of(tokenizer), tokenizer, config.taps, args.answer, args.held_out)
    positions = corpus.tokens.shape[1]
    found: dict[str, Any] = {}
    for name, mix in MIXES.items():
        model = restored(config, rounded(tensors, *mix), trunk, positions)
        found[name] = measured(model, corpus, answers)
        _show(name, found[name])
    for block in BLOCKS:
        model = restored(replace(config, block=block), tensors, trunk, positions)
        found[f"{block} rows"] = measured(model, corpus, answers)
        _show(f"{block} rows", found[f"{block} rows"])
    selector = config.selector
    for count in CANDIDATES if selector else ():
        wider = replace(config, selector=replace(selector, top_k=count))  # type: ignore[type-var]
        found[f"{count} candidates"] = measured(restored(wider, tensors, trunk, positions), corpus, answers)
        _show(f"{count} candidates", found[f"{count} candidates"])
    (args.folder / "measured.json").write_text(json.dumps(found, indent=1) + "\n")


def _show(name: str, report: Mapping[str, Any]) -> None:
    lengths = ", ".join(f"{kind} {entry['length']:.3f}" for kind, entry in report["accepted"].items())
    print(f"{name}: recall@1 {report['recall@1']:.4f}; accepted length {lengths}", flush=True)


if __name__ == "__main__":
    main()
