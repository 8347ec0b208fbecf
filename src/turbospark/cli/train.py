"""`turbospark train-drafter`: flags to settings, progress to stderr."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from turbospark.cli.arguments import Parser, number, text, whole
from turbospark.cli.output import note
from turbospark.errors import TurbosparkError

ABOUT = "Trains a DFlash2 drafter for a model, on conversations that the model itself writes. Needs torch."
HELP = "train a drafter for a model"
EPILOG = """examples:
  turbospark train-drafter smollm2 --out drafter/ --seconds 600
  turbospark train-drafter model.gguf --out drafter/ --steps 20000 --layers 2 --device cuda
  turbospark train-drafter folder/ --out drafter/ --steps 20000 --data prompts.txt
  turbospark run smollm2 --speculative-drafter drafter/ "Write a Python function"

First the model writes --sequences conversations, half of the answers greedily and half at temperature 0.8; then the
drafter is trained on them; then its accepted length (proposals kept + 1) is measured on held-out prompts. The folder
gets config.json and model.safetensors (the published layout, which --speculative-drafter loads), report.json,
log.jsonl and a checkpoint: the same command goes on from it after an interruption. A GPU of 80 GB holds the defaults;
a smaller one takes fewer --sequences, since their states lie in its memory: positions x taps x hidden size x 2 bytes.
Install torch with `pip install turbospark[train]`."""


def flags(parser: Parser) -> None:
    parser.add_argument("trunk", metavar="TRUNK", type=text, help="the model: an alias, a GGUF file, or a folder")
    parser.add_argument("--out", metavar="DIR", required=True, help="the folder to write; one begun is gone on with")

    length = parser.add_argument_group("how long")
    length.add_argument("--steps", metavar="N", type=whole, help="training steps")
    length.add_argument("--seconds", metavar="X", type=number, help="or training time; the schedule follows the clock")
    length.add_argument("--device", metavar="NAME", default="auto", help="cpu, cuda, cuda:1 (default: cuda if there)")
    length.add_argument("--seed", metavar="N", type=whole, help="of everything drawn (default 0)")

    data = parser.add_argument_group("what it learns from")
    data.add_argument("--data", metavar="FILE", help="prompts, one a line (.jsonl: a text each), to begin with")
    data.add_argument("--held-out-data", metavar="FILE", help="the same to measure on, .jsonl with a kind each")
    data.add_argument("--sequences", metavar="N", type=whole, help="conversations to write (default 12288)")
    data.add_argument("--together", metavar="N", type=whole, help="sequences written side by side (default 2048)")
    data.add_argument("--length", metavar="N", type=whole, help="tokens of a sequence (default 704)")
    data.add_argument("--code", metavar="X", type=number, help="share of code prompts (default 0.4)")
    data.add_argument("--arithmetic", metavar="X", type=number, help="share of arithmetic prompts (default 0.2)")
    data.add_argument("--prose", metavar="X", type=number, help="share of prose prompts (default 0.2)")
    data.add_argument("--made", metavar="X", type=number, help="of these, the share of whole prompts (default 0.4)")

    model = parser.add_argument_group("the drafter")
    model.add_argument("--layers", metavar="N", type=whole, help="layers (default 4)")
    model.add_argument("--block", metavar="N", type=whole, help="rows of a block, the anchor included (default 8)")
    model.add_argument("--window", metavar="N", type=whole, help="context positions it sees (default 512)")
    model.add_argument("--taps", metavar="I,J,...", help="trunk layers it reads (default: five, spread over the depth)")
    model.add_argument("--rank", metavar="N", type=whole, help="of the selector's codebooks (default 64)")
    model.add_argument("--top-k", metavar="N", type=whole, help="candidates of a row (default 8)")
    model.add_argument("--draft-ids", metavar="N", type=whole, help="ids it can propose; 0: all (default 12288)")

    step = parser.add_argument_group("a step")
    step.add_argument("--batch", metavar="N", type=whole, help="sequences (default 24)")
    step.add_argument("--anchors", metavar="N", type=whole, help="blocks of each (default 128)")
    step.add_argument("--rate", metavar="X", type=number, help="peak learning rate (default 0.001)")
    step.add_argument("--soft", metavar="X", type=number, help="share of the model's own distribution (default 0.7)")
    step.add_argument("--noisy", metavar="X", type=number, help="share of the loss under a draw's noise (default 0)")
    step.add_argument("--gamma", metavar="X", type=number, help="how slowly later rows lose weight (default 4)")
    model.add_argument("--begin-with", metavar="PATH", help="start from a drafter of this shape")
    parser.add_argument("--held-out", metavar="N", type=whole, help="held-out prompts of each kind (default: all)")
    parser.add_argument("--answer", metavar="N", type=whole, default=600, help="tokens of a held-out answer at most")


def train(args: argparse.Namespace) -> int:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise TurbosparkError("no_torch", "training needs torch", "pip install turbospark[train]") from None
    from turbospark.catalog import resolve
    from turbospark.train.command import train_drafter
    from turbospark.train.settings import Settings

    given = {k: v for k, v in vars(args).items() if k in Settings.__dataclass_fields__ and v is not None}
    if args.taps is not None:
        given["taps"] = tuple(_taps(args.taps))
    train_drafter(
        resolve(args.trunk),
        args.out,
        Settings(**given),
        device=args.device,
        prompts=[text for _, text in _prompts(args.data)],
        begin_with=args.begin_with,
        held_out_prompts=args.held_out,
        asked=_by_kind(_prompts(args.held_out_data)),
        answer=args.answer,
        say=note,
    )
    return 0


def _taps(given: str) -> list[int]:
    try:
        return [int(part) for part in given.split(",")]
    except ValueError:
        message = f"--taps must be layer numbers with commas between, has {given[:60]!r}"
        raise TurbosparkError("bad_arguments", message) from None


def _prompts(path: str | None) -> list[tuple[str, str]]:
    """Kind and text of each line; a file that is not .jsonl holds the texts themselves, all of one kind."""
    if path is None:
        return []
    try:
        lines = [line.strip() for line in Path(path).read_text("utf-8").splitlines()]
    except UnicodeDecodeError as error:
        raise TurbosparkError("bad_prompts", f"{path} is not UTF-8 at byte {error.start}") from None
    read = _object if path.endswith(".jsonl") else lambda line, where: ("text", line)
    found = [read(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line]
    if not found:
        raise TurbosparkError("bad_prompts", f"{path} holds no prompt")
    return found


def _object(line: str, where: str) -> tuple[str, str]:
    try:
        said = json.loads(line)
    except json.JSONDecodeError as error:
        raise TurbosparkError("bad_prompts", f"{where} is no JSON: {error}") from None
    kind, words = (said.get("kind", "text"), said.get("text")) if isinstance(said, dict) else (None, None)
    if not isinstance(kind, str) or not isinstance(words, str) or not words:
        raise TurbosparkError("bad_prompts", f'{where} should read like {{"kind": "code", "text": "def "}}')
    return kind, words


def _by_kind(found: list[tuple[str, str]]) -> dict[str, list[str]] | None:
    kinds: dict[str, list[str]] = {}
    for kind, words in found:
        kinds.setdefault(kind, []).append(words)
    return kinds or None
