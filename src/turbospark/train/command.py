"""The run behind `turbospark train-drafter`: write, train, measure, and leave a folder that can draft."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from turbospark.draft.dflash_config import from_hf
from turbospark.draft.fingerprint import fingerprint
from turbospark.errors import TurbosparkError
from turbospark.formats import open_checkpoint
from turbospark.tokenizer import load_tokenizer
from turbospark.train.data import draft_vocabulary, read
from turbospark.train.dflash import DFlash2
from turbospark.train.export import arrays, read_folder, read_gguf, write_folder
from turbospark.train.loop import Trainer, measured
from turbospark.train.prompts import HELD_OUT
from turbospark.train.settings import Settings, drafter_config
from turbospark.train.trunk import Trunk, open_trunk
from turbospark.train.writer import Chat, Written, chat_of
from turbospark.train.writing import held_out, starts, write

Say = Callable[[str], None]
ANSWER = 600  # tokens of a held-out answer


def train_drafter(
    path: str | Path,
    out: str | Path,
    settings: Settings,
    *,
    device: str = "auto",
    prompts: Sequence[str] = (),
    begin_with: str | Path | None = None,
    held_out_prompts: int | None = None,
    asked: Mapping[str, Sequence[str]] | None = None,
    answer: int = ANSWER,
    say: Say = print,
) -> dict[str, Any]:
    """Trains a DFlash2 drafter for the trunk at `path`; returns the report that it also writes to out/report.json.

    prompts: user turns to begin with; the trunk makes its own if there are none. A trunk without a chat template goes
    on with `prompts` as texts. begin_with: the folder or GGUF file of a drafter of the same shape, whose weights are
    the start. asked: held-out prompts by kind, our own if None; held_out_prompts: of each kind, all if None; answer:
    tokens of those at most. A run whose folder has a checkpoint goes on from it.
    """
    out, clock = Path(out), Clock(say)
    out.mkdir(parents=True, exist_ok=True)
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise TurbosparkError("no_device", f"device {device!r} is not there", "--device cpu")
    checkpoint = open_checkpoint(path)
    tokenizer = load_tokenizer(checkpoint)
    if tokenizer is None:
        raise TurbosparkError("no_tokenizer", f"{path} has no tokenizer, which training on conversations needs")
    trunk = open_trunk(path, device, settings.length + answer + 512)
    chat, trunk_of = chat_of(tokenizer), fingerprint(trunk.config, checkpoint, checkpoint.kind)
    if not chat.turns and not (prompts and asked):
        message = (
            f"{path} has no chat template, so it cannot make its own prompts, and prompts to hold out are needed too"
        )
        raise TurbosparkError("no_prompts", message, "give beginnings of texts with --data and --held-out-data")
    declared = drafter_config(settings, trunk.config, mask_id(tokenizer, chat), trunk_of)
    config = from_hf(declared, "the drafter to train")
    clock.lap("trunk read")

    made = _conversations(out, trunk, chat, starts(settings, tokenizer, prompts), settings, say)
    clock.lap("conversations written")
    corpus = read(trunk, made, config.taps)
    judged, answers = held_out(trunk, chat, tokenizer, config.taps, answer, held_out_prompts, asked or HELD_OUT)
    ids, coverage = draft_vocabulary(corpus, settings.draft_ids or config.vocab, config.vocab, [chat.end])
    clock.lap(f"states tapped; {len(ids)} draft ids cover {100 * coverage:.2f} % of {int(made.answer.sum())} tokens")

    torch.manual_seed(settings.seed)
    positions = max(made.tokens.shape[1], judged.tokens.shape[1])
    whole = len(ids) == config.vocab
    model = DFlash2(config, trunk.embedding, trunk.head, positions, None if whole else ids).to(trunk.device)
    with torch.no_grad():
        model.norm.weight.copy_(trunk.norm)
    if begin_with is not None:
        _load(model, Path(begin_with))
    count = sum(p.numel() for p in model.parameters())
    say(f"{count / 1e6:.1f} M parameters, of them {_codebooks(model) / 1e6:.1f} M in codebooks")
    trainer = Trainer(model, corpus, settings, out, say)
    if trainer.resume():
        say(f"resumed at step {trainer.done}, {100 * trainer.fraction:.0f} % of the run")
    show = lambda: say(_lines(measured(model, judged, answers)))
    trainer.run(halfway=show)
    clock.lap(f"trained {trainer.done} steps")
    report = {
        "settings": settings.kept | {"steps": trainer.done, "seconds": round(trainer.spent, 1)},
        "parameters": count,
        "answer_tokens": int(made.answer.sum()),
        "tokens": made.tokens.numel(),
        "draft_ids": len(ids),
        "coverage": round(coverage, 5),
        **measured(model, judged, answers),
        "laps": clock.laps,
        "device": torch.cuda.get_device_name() if trunk.device.type == "cuda" else "cpu",
    }
    say(_lines(report))
    write_folder(out, declared, arrays(model))
    (out / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    return report


class Clock:
    """Says what took how long."""

    def __init__(self, say: Say):
        self.say, self._last = say, time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, what: str) -> None:
        now = time.monotonic()
        self.laps[what.partition(";")[0]] = round(now - self._last, 1)
        self.say(f"[{now - self._last:.1f} s] {what}")
        self._last = now


def mask_id(tokenizer: Any, chat: Chat) -> int:
    """A control token that no conversation holds; the last id if all are in use."""
    used = {*chat.header, *chat.to_answer, *chat.to_user, *chat.ends, chat.end}
    spare = [i for i in range(tokenizer.vocab_size) if i not in used and tokenizer.is_control(i)]
    return spare[-1] if spare else tokenizer.vocab_size - 1


def _load(model: DFlash2, path: Path) -> None:
    """The weights of a finished drafter; its reduced vocabulary is not taken over."""
    found = read_folder(path)[1] if path.is_dir() else read_gguf(path, model.state_dict())
    stored = {n: torch.from_numpy(v) for n, v in found.items() if n != "d2t"}
    wanted = model.state_dict()
    for name in {*stored, *wanted}:
        have, want = (list(t[name].shape) if name in t else None for t in (stored, wanted))
        if have != want:
            message = f"tensor {name} of {path} has shape {have}, the drafter to train has {want}"
            raise TurbosparkError("shape_mismatch", message)
    model.load_state_dict(stored)


def _conversations(out: Path, trunk: Trunk, chat: Chat, begins: Sequence[Any], settings: Settings, say: Say) -> Written:
    """From the folder when an interrupted run left them there."""
    kept = out / "conversations.npz"
    if kept.exists():
        stored = np.load(kept)
        if len(stored["tokens"]) == settings.sequences and stored["tokens"].shape[1] == settings.length:
            say(f"conversations of {kept} are used again")
            answer = np.unpackbits(stored["answer"], axis=1)[:, : settings.length].astype(bool)
            tokens = torch.from_numpy(stored["tokens"].astype(np.int32)).to(trunk.device)
            noise = torch.tensor([s.key for s in begins]), torch.tensor([s.temperature for s in begins])
            return Written(*(v.to(trunk.device) for v in (tokens, torch.from_numpy(answer), *noise)))
    made = write(trunk, chat, begins, settings, say)
    narrow = np.uint16 if trunk.config.vocab <= 1 << 16 else np.uint32
    part = out / "conversations.part.npz"
    np.savez(
        part, tokens=made.tokens.cpu().numpy().astype(narrow), answer=np.packbits(made.answer.cpu().numpy(), axis=1)
    )
    part.replace(kept)
    return made


def _codebooks(model: DFlash2) -> int:
    return sum(p.numel() for n, p in model.named_parameters() if n.endswith("codebook"))


def _lines(report: dict[str, Any]) -> str:
    recalls = ", ".join(f"{k} {v:.3f}" for k, v in report.items() if k.startswith(("recall", "selected")))
    lengths = ", ".join(f"{k} {v['length']:.2f}" for k, v in report["accepted"].items())
    return f"held out: {recalls}; accepted length: {lengths}"
