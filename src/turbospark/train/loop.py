"""The training loop: steps, progress, checkpoints that resume, and what the drafter reaches on held-out answers."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from turbospark.errors import TurbosparkError
from turbospark.train.accepted import Answer, accepted
from turbospark.train.data import Corpus
from turbospark.train.dflash import DFlash2
from turbospark.train.loss import Loss, loss_of
from turbospark.train.settings import Settings

Say = Callable[[str], None]
EVERY, SAVE_EVERY = 100, 60.0  # steps between lines of progress, seconds between checkpoints
WARM = 3  # steps before a GPU's are recorded as one graph


class Trainer:
    """One run. `step` is a function of the drafter, the optimiser and the drawn sequences alone."""

    def __init__(self, model: DFlash2, corpus: Corpus, settings: Settings, folder: Path, say: Say):
        self.model, self.corpus, self.settings, self.say = model, corpus, settings, say
        self.path, self.log_path = folder / "checkpoint.pt", folder / "log.jsonl"
        self.device = corpus.tokens.device
        self.gpu = self.device.type == "cuda"
        self.rate = torch.tensor(settings.rate, device=self.device)
        fast = {"fused": True, "capturable": True} if self.gpu else {}
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=self.rate, betas=(0.9, 0.95), weight_decay=settings.decay, **fast
        )
        self.which = torch.zeros(settings.batch, dtype=torch.int64, device=self.device)
        self.generator = torch.Generator().manual_seed(settings.seed)
        torch.manual_seed(settings.seed)
        self.done, self.spent = 0, 0.0
        self._order: list[int] = []
        self._loss = torch.compile(loss_of) if self.gpu else loss_of
        self._graph: Any = None
        self._last: Loss | None = None

    def resume(self) -> bool:
        """Goes on from the folder's checkpoint, if it has one; refused when that run was told otherwise."""
        if not self.path.exists():
            return False
        saved = torch.load(self.path, map_location=self.device, weights_only=True)
        if saved["settings"] != _plain(self.settings.kept):
            ours = _plain(self.settings.kept)
            differ = [k for k in ours if saved["settings"].get(k) != ours[k]]
            theirs = ", ".join(f"{k} {saved['settings'].get(k)!r}, asked {ours[k]!r}" for k in differ)
            raise TurbosparkError("other_run", f"{self.path} is of a run with {theirs}", "take another --out")
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.optimizer.param_groups[0]["lr"] = self.rate
        self.done, self.spent = saved["done"], saved["spent"]
        self.generator.set_state(saved["generator"].cpu())
        torch.manual_seed(self.settings.seed + self.done)
        self._order = saved["order"]
        return True

    def save(self) -> None:
        state = {
            "settings": _plain(self.settings.kept),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "done": self.done,
            "spent": self.spent,
            "generator": self.generator.get_state(),
            "order": self._order,
        }
        part = self.path.with_suffix(".part")
        torch.save(state, part)
        part.replace(self.path)

    @property
    def fraction(self) -> float:
        """How much of the run is behind."""
        s = self.settings
        by_steps = self.done / s.steps if s.steps else 0.0
        return max(by_steps, self.spent / s.seconds if s.seconds else 0.0)

    def run(self, halfway: Callable[[], Any] = lambda: None) -> None:
        if self.gpu and self._graph is None:
            self.rate.fill_(self.settings.rate * schedule(self.fraction, self.settings.warmup))
            self._record()  # compiling takes a while that is no part of the run
        began, already, saved, looked = time.monotonic(), self.spent, time.monotonic(), self.fraction >= 0.5
        while self.fraction < 1:
            self.rate.fill_(self.settings.rate * schedule(self.fraction, self.settings.warmup))
            self.which.copy_(torch.tensor(self._draw()))
            self._step()
            self.done += 1
            if self.done % EVERY == 0 or self.fraction >= 1:
                self._report()  # waits for the device, so the clock below is true
            self.spent = already + time.monotonic() - began
            if time.monotonic() - saved > SAVE_EVERY:
                self.save()
                saved = time.monotonic()
            if not looked and self.fraction >= 0.5:
                looked, paused = True, time.monotonic()
                halfway()
                began += time.monotonic() - paused
        self.save()

    def _draw(self) -> list[int]:
        count, size = len(self.corpus.tokens), self.settings.batch
        while len(self._order) < size:
            self._order += torch.randperm(count, generator=self.generator).tolist()
        drawn, self._order = self._order[:size], self._order[size:]
        return drawn

    def _plain_step(self) -> None:
        s = self.settings
        batch = self.corpus.blocks(self.which, s.anchors, s.block, s.gamma)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.gpu):
            self._last = self._loss(self.model, batch, s.soft, s.noisy)
        self._last.total.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip)
        self.optimizer.step()

    def _step(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._plain_step()
            self.optimizer.zero_grad(set_to_none=True)

    def _record(self) -> None:
        """A few true steps, then one that is recorded and from then on replayed."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM):
                self.which.copy_(torch.tensor(self._draw()))
                self._plain_step()
                self.optimizer.zero_grad(set_to_none=True)
        torch.cuda.current_stream().wait_stream(side)
        self.done += WARM
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._plain_step()

    def _report(self) -> None:
        values = {k: round(float(v.detach()), 4) for k, v in self._last._asdict().items()}  # type: ignore[union-attr]
        line = {"step": self.done, "seconds": round(self.spent, 1), "rate": float(f"{float(self.rate):.3g}"), **values}
        with self.log_path.open("a") as log:
            log.write(json.dumps(line) + "\n")
        if not math.isfinite(values["total"]):
            raise TurbosparkError("diverged", f"step {self.done}: the loss is {values['total']}", "take a lower --rate")
        if self.done % (10 * EVERY) == 0 or self.done == EVERY or self.fraction >= 1:
            self.say(
                f"step {self.done} ({100 * self.fraction:.0f} %), {self.spent:.0f} s: loss {values['total']:.3f}, "
                f"recall@1 {values['first']:.3f}, @{self.settings.top_k} {values['listed']:.3f}, "
                f"selected {values['picked']:.3f}"
            )


@torch.no_grad()
def measured(
    model: DFlash2, corpus: Corpus, answers: Sequence[Answer], anchors: int = 128, block: int | None = None
) -> dict[str, Any]:
    """Held-out accepted length by kind and temperature, and over all greedy answers recall@1, @k and the selector's."""
    was, gpu = model.training, corpus.tokens.device.type == "cuda"
    model.eval()
    with torch.autocast(corpus.tokens.device.type, torch.bfloat16, enabled=gpu):
        tallies = accepted(model, corpus, answers, block)
        losses = []
        for start in range(0, len(answers), 8):
            which = torch.arange(start, min(start + 8, len(answers)), device=corpus.tokens.device)
            losses.append(loss_of(model, corpus.blocks(which, anchors, model.config.block, 1e9)))
    model.train(was)
    mean = lambda name: round(sum(float(getattr(loss, name)) for loss in losses) / len(losses), 4)
    return {
        "recall@1": mean("first"),
        f"recall@{model.config.selector.top_k if model.config.selector else 1}": mean("listed"),
        "selected": mean("picked"),
        "accepted": {
            f"{kind} {temperature:g}": {"length": round(t.length, 3), "rounds": t.rounds, "by_row": t.by_row}
            for (kind, temperature), t in tallies.items()
        },
    }


def schedule(fraction: float, warmup: float) -> float:
    """A linear start, then half a cosine down to nothing."""
    if fraction < warmup:
        return max(fraction, 1e-4) / warmup
    return 0.5 * (1 + math.cos(math.pi * (fraction - warmup) / (1 - warmup)))


def _plain(settings: dict[str, Any]) -> dict[str, Any]:
    return {k: list(v) if isinstance(v, tuple) else v for k, v in settings.items()}
