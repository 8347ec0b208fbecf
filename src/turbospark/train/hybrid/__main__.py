"""A small qwen3_5 trunk with an MTP head, trained from texts.

  text   KIND=PATTERN ... --out DATA        a tokenizer and tokens of the files that match
  trunk  DATA --out DIR --seconds N         trains the trunk: DIR/trunk.gguf and DIR/trunk.pt
  mtp    DATA --out DIR --seconds N         trains the head on that trunk: DIR/hybrid.gguf holds both

A drafter for it: turbospark train-drafter DIR/hybrid.gguf --data DATA/beginnings.jsonl
--held-out-data DATA/held_out.jsonl --out DRAFTER ...
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turbospark.errors import TurbosparkError
from turbospark.train.hybrid.file import write_trunk
from turbospark.train.hybrid.loop import Run, fit
from turbospark.train.hybrid.model import Hybrid, MTPHead, Shape
from turbospark.train.hybrid.text import prepare
from turbospark.train.qwen import QwenLayer
from turbospark.train.trunk import open_trunk

DEPTH = 3  # proposals of the head that are trained in a row


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def train_trunk(data: Path, out: Path, shape: Shape, run: Run, device: str) -> dict[str, Any]:
    """Writes trunk.pt, trunk.gguf, trunk.jsonl (the log) and trunk.json (the report)."""
    torch.manual_seed(run.seed)
    gpu = device.startswith("cuda")
    if gpu:
        torch._dynamo.config.recompile_limit = 4 * shape.layers  # a layer's code serves all layers
    model = Hybrid(shape, torch.compile(QwenLayer.forward) if gpu else QwenLayer.forward).to(device)
    count = sum(p.numel() for p in model.parameters())
    say(f"{count / 1e6:.1f} M parameters")
    began = time.monotonic()
    report = fit(model, lambda ids: [model.loss(ids)], np.load(data / "train.npy"), run, out / "trunk.jsonl", say)
    report |= {"parameters": count, "all seconds": round(time.monotonic() - began, 1), "settings": asdict(run)}
    model.run = QwenLayer.forward
    report["held out"] = round(judge(model, np.load(data / "held_out.npy"), run.length), 4)
    torch.save({"shape": asdict(shape), "model": model.state_dict()}, out / "trunk.pt")
    write_trunk(out / "trunk.gguf", model, data / "tokenizer.json")
    (out / "trunk.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


@torch.no_grad()
def judge(model: Hybrid, tokens: np.ndarray, length: int, windows: int = 64) -> float:
    """Mean cross-entropy of the first windows of held-out text, in nats a token."""
    device = model.token_embd.device
    count = min(windows, (len(tokens) - 1) // length)
    found = []
    for i in range(count):
        ids = torch.from_numpy(tokens[i * length : (i + 1) * length + 1].astype(np.int64))[None].to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            found.append(float(model.loss(ids)))
    return sum(found) / max(count, 1)


def train_mtp(data: Path, out: Path, run: Run, device: str) -> dict[str, Any]:
    """On the states of out/trunk.gguf as it is stored; writes hybrid.gguf and the same kind of log and report."""
    torch.manual_seed(run.seed)
    trunk = open_trunk(out / "trunk.gguf", device, run.length + 1)
    head = MTPHead(trunk.config, trunk.rotation).to(device)
    with torch.no_grad():
        head.shared_head_norm.copy_(trunk.norm)
        head.hnorm.copy_(torch.ones_like(trunk.norm))
    gpu = device.startswith("cuda")
    if gpu:
        torch._dynamo.config.recompile_limit = 4 * len(trunk.layers)
        for layer in trunk.layers:
            layer.full = torch.compile(QwenLayer.forward).__get__(layer)
    loss = torch.compile(MTPHead.loss) if gpu else MTPHead.loss

    def of(ids: torch.Tensor) -> Sequence[torch.Tensor]:
        with torch.autocast(ids.device.type, enabled=False):
            hidden = trunk.full(ids).hidden
        return loss(head, ids, hidden, trunk.embedding, DEPTH)

    report = fit(head, of, np.load(data / "train.npy"), run, out / "mtp.jsonl", say)
    report |= {"parameters": sum(p.numel() for p in head.parameters()), "settings": asdict(run)}
    report["held out"] = judge_mtp(head, trunk, np.load(data / "held_out.npy"), run.length)
    stored = torch.load(out / "trunk.pt", weights_only=True)
    model = Hybrid(Shape(**stored["shape"]))
    model.load_state_dict(stored["model"])
    write_trunk(out / "hybrid.gguf", model, data / "tokenizer.json", head)
    (out / "mtp.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


@torch.no_grad()
def judge_mtp(head: MTPHead, trunk: Any, tokens: np.ndarray, length: int, windows: int = 16) -> list[float]:
    """Loss and recall at 1 of each row, over the first windows of held-out text."""
    count, found = min(windows, len(tokens) // length), []
    for i in range(count):
        ids = torch.from_numpy(tokens[i * length : (i + 1) * length].astype(np.int64))[None].to(trunk.device)
        hidden = trunk.full(ids).hidden
        with torch.autocast(trunk.device.type, torch.bfloat16, enabled=trunk.device.type == "cuda"):
            found.append([float(v) for v in head.loss(ids, hidden, trunk.embedding, DEPTH)])
    return [round(float(v), 4) for v in np.mean(found, 0)] if found else []


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    text = commands.add_parser("text")
    text.add_argument("sources", nargs="+", metavar="KIND=PATTERN")
    text.add_argument("--vocab", type=int, default=Shape.vocab)
    trunk = commands.add_parser("trunk")
    mtp = commands.add_parser("mtp")
    for part in (trunk, mtp):
        part.add_argument("data", type=Path)
        part.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
        for name, kind in (("steps", int), ("seconds", float), ("seed", int), ("batch", int), ("length", int)):
            part.add_argument(f"--{name}", type=kind, default=getattr(Run, name))
        part.add_argument("--rate", type=float, default=Run.rate)
    for part in (text, trunk, mtp):
        part.add_argument("--out", type=Path, required=True)
    for name in ("hidden", "layers", "width", "vocab"):
        trunk.add_argument(f"--{name}", type=int, default=getattr(Shape, name))
    args = parser.parse_args(argv)
    args.out.mkdir(parents=True, exist_ok=True)
    given = lambda kind: {k: v for k, v in vars(args).items() if k in kind.__dataclass_fields__}
    try:
        if args.command == "text":
            report = prepare(args.sources, args.out, args.vocab)
        elif args.command == "trunk":
            report = train_trunk(args.data, args.out, Shape(**given(Shape)), Run(**given(Run)), args.device)
        else:
            report = train_mtp(args.data, args.out, Run(**given(Run)), args.device)
    except TurbosparkError as error:
        say(f"{error.code}: {error.message}")
        return 1
    say(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
