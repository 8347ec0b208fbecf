"""One answer: streamed to stdout as it is made, stopped by Ctrl-C, measured at its end."""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType
from typing import Any

from turbospark.cli.output import note
from turbospark.cli.phases import costs
from turbospark.cli.speculation import told
from turbospark.engine.params import SamplingParams
from turbospark.memory import peak_bytes
from turbospark.runtime import Completion, LanguageModel, Prompt, TextOf
from turbospark.units import size


class CtrlC:
    """While inside, the first Ctrl-C sets `pressed`, so that a step can end in order; the next one interrupts it."""

    def __init__(self) -> None:
        self.pressed = False
        self._before: Any = None

    def __enter__(self) -> CtrlC:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._press)
        return self

    def __exit__(self, *_: Any) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def _press(self, number: int, frame: FrameType | None) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True


def answer(model: LanguageModel, prompt: Prompt, params: SamplingParams) -> Completion:
    """Runs a prompt, its text on stdout, ended by a line end. Stopped by Ctrl-C the finish reason is "cancelled"."""
    with CtrlC() as ctrl_c:
        text = TextOf(model.submit(prompt, params))
        chunks = text.chunks(model.engine)
        for chunk in chunks:
            if chunk.text:
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
            if ctrl_c.pressed:
                break
        chunks.close()  # cancels what still runs
        completion = text.completion()
        if not completion.text.endswith("\n"):
            print(flush=True)
    return completion


def facts(completion: Completion) -> str:
    """The answer's speed, memory and seed, in one line."""
    stats = completion.stats
    reused = f" ({stats.reused_tokens} reused)" if stats.reused_tokens else ""
    parts = [
        f"{stats.prompt_tokens} prompt tokens{reused}",
        f"{stats.new_tokens} new",
        f"{stats.tokens_per_second:.1f} tokens/s",
        f"first token after {stats.first_token_s:.2f} s",
        f"peak memory {size(peak_bytes())}",
        f"seed {completion.params.seed}",
    ]
    ended = {"length": ["ended by length"], "cancelled": ["stopped"]}.get(completion.finish_reason, [])
    return f"[{', '.join(parts + ended)}]"


def tell(completion: Completion, quiet: bool) -> None:
    """The answer's facts, then what speculation did, if there was any, and last what streamed experts cost."""
    if not quiet:
        note(facts(completion))
    for line in (*told(completion.stats, quiet), *costs(completion.stats, quiet)):
        note(line)
