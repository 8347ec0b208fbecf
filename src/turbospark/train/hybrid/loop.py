"""Steps of AdamW under a schedule, on a GPU recorded once and replayed."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from turbospark.errors import TurbosparkError
from turbospark.train.loop import schedule

Say = Callable[[str], None]
WARM, EVERY = 3, 50  # steps before a GPU's are recorded; steps between lines of the log


@dataclass(frozen=True)
class Run:
    """How a model is fitted: steps or seconds, windows of `length` tokens, `batch` of them a step."""

    steps: int | None = None
    seconds: float | None = None
    seed: int = 0
    batch: int = 48
    length: int = 1024
    rate: float = 2e-3
    warmup: float = 0.03
    decay: float = 0.1
    clip: float = 1.0

    def __post_init__(self) -> None:
        if not self.steps and not self.seconds:
            raise TurbosparkError("invalid_parameter", "training needs steps or seconds, has neither")


def fit(
    model: nn.Module, loss: Callable[[Tensor], Sequence[Tensor]], tokens: np.ndarray, run: Run, log: Path, say: Say
) -> dict[str, Any]:
    """Minimises the first of `loss(ids [batch, length + 1])`; the rest is reported. Returns steps and seconds."""
    device = next(model.parameters()).device
    if len(tokens) <= run.length + 1:
        message = f"windows of {run.length + 1} tokens need more than that many, there are {len(tokens)}"
        raise TurbosparkError("too_few_texts", message)
    gpu, r = device.type == "cuda", np.random.default_rng(run.seed)
    text = torch.from_numpy(tokens.astype(np.int32)).to(device)
    window = torch.arange(run.length + 1, device=device)
    at = torch.zeros(run.batch, 1, dtype=torch.int64, device=device)
    rate = torch.tensor(run.rate, device=device)
    wide = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim == 1]
    optimizer = torch.optim.AdamW(
        [{"params": wide, "weight_decay": run.decay}, {"params": rest, "weight_decay": 0.0}],
        lr=rate,
        betas=(0.9, 0.95),
        **({"fused": True, "capturable": True} if gpu else {}),
    )
    last: list[Tensor] = []

    def step() -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            made = loss(text[at + window].long())
        made[0].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), run.clip)
        optimizer.step()
        last[:] = [m.detach() for m in made]

    def draw(fraction: float) -> None:
        rate.fill_(run.rate * schedule(fraction, run.warmup))
        at.copy_(torch.from_numpy(r.integers(0, len(tokens) - run.length - 1, (run.batch, 1))))

    def plain() -> None:
        step()
        optimizer.zero_grad(set_to_none=True)

    replay = plain
    done = 0
    if gpu:
        replay, done = _recorded(step, plain, lambda: draw(0.0)), WARM
    began = time.monotonic()
    spent = 0.0
    while (fraction := max(done / run.steps if run.steps else 0, spent / run.seconds if run.seconds else 0)) < 1:
        draw(fraction)
        replay()
        done += 1
        if done % EVERY == 0 or done == run.steps:
            values = [round(float(v), 4) for v in last]  # waits for the device, so the clock below is true
            with log.open("a") as out:
                out.write(json.dumps({"step": done, "seconds": round(spent, 1), "values": values}) + "\n")
            if not math.isfinite(values[0]):
                raise TurbosparkError("diverged", f"step {done}: the loss is {values[0]}", "take a lower --rate")
            if done % (10 * EVERY) == 0:
                say(f"step {done} ({100 * fraction:.0f} %), {spent:.0f} s: {' '.join(map(str, values))}")
        spent = time.monotonic() - began
    if gpu:
        torch.cuda.synchronize()
    return {"steps": done, "seconds": round(spent, 1), "last": [round(float(v), 4) for v in last]}


def _recorded(step: Callable[[], None], plain: Callable[[], None], draw: Callable[[], None]) -> Callable[[], None]:
    """A few true steps, then one as a graph."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            draw()
            plain()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay
