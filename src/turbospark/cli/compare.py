"""`compare`: the same answer plainly and with a drafter, side by side, each getting as much time as the other."""

from __future__ import annotations

import argparse
import shutil
import sys
import textwrap
import time
from typing import Any

from turbospark.cli.arguments import Parser, number, text, whole
from turbospark.cli.output import note, plain
from turbospark.errors import TurbosparkError

HELP = "an answer with and without a drafter, side by side"
ABOUT = "Answers a prompt twice at once, plainly and with a drafter: the same text, at two speeds."
EPILOG = """example:
  turbospark compare smollm2 "Write a Python function that reverses a string."

Both sides work in turns, each for as long as the other, so that what they show at any time is what they would by
then. A text that differs would be a fault, and is reported as one."""

FRAME = 0.1  # seconds from one picture to the next
GAP = "  |  "
WARM = 24  # tokens that come before, since first calls compile


def flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", help="an alias, a GGUF file or a folder")
    parser.add_argument("prompt", metavar="PROMPT", type=text, help="the question")
    parser.add_argument("--max-new", metavar="N", type=whole, default=256, help="tokens at most (default 256)")
    parser.add_argument("--temperature", metavar="X", type=number, default=0.0, help="0 is greedy (default 0)")
    parser.add_argument("--seed", metavar="N", type=whole, default=1, help="of both (default 1)")
    parser.add_argument(
        "--speculative-drafter", metavar="D", type=text, default="auto", help="auto, dflash, mtp, ngram, or a path"
    )
    parser.add_argument("--threads", metavar="N", type=whole, help="of the CPU kernels (default: one for each core)")


class Side:
    """One request in an engine of its own; `seconds` of work so far."""

    def __init__(self, name: str, engine: Any, model: Any, prompt: Any, params: Any):
        from turbospark.runtime import LanguageModel, TextOf

        self.name, self.seconds, self.text = name, 0.0, ""
        self._engine = engine
        self.request = LanguageModel(model.checkpoint, model.config, model.tokenizer, engine).submit(prompt, params)
        self._chunks = TextOf(self.request).chunks(engine)
        self._reading = 0.0

    def work(self) -> None:
        start = time.perf_counter()
        chunk = next(self._chunks, None)
        if chunk is not None:
            self.text += chunk.text
        self.seconds += time.perf_counter() - start
        if not self.request.drawn:
            self._reading = self.seconds

    @property
    def speed(self) -> float:
        """Tokens a second behind the first."""
        spent = self.seconds - self._reading
        return max(0, len(self.request.output) - 1) / spent if spent > 0 else 0.0

    def head(self) -> str:
        return f"{self.name}: {len(self.request.output)} tokens, {self.speed:.0f} a second"


def compare(args: argparse.Namespace) -> int:
    from turbospark.draft.adaptive import Adaptive
    from turbospark.engine.loop import Engine
    from turbospark.engine.params import SamplingParams
    from turbospark.runtime import load

    named = args.speculative_drafter
    model = load(args.model, slots=1, drafter=named, threads=args.threads, note=note)
    model.require_drafter(f"compare --speculative-drafter {named}")
    drafter: Any = model.engine.drafter
    prompt: Any = args.prompt
    if model.tokenizer is not None and model.tokenizer.has_chat_template:
        prompt = [{"role": "user", "content": args.prompt}]
    sides: list[Side] = []
    for count in (min(WARM, args.max_new), args.max_new):
        params = SamplingParams(max_new=count, temperature=args.temperature, seed=args.seed)
        sides = [
            Side(name, Engine(model.engine.model, 1, drafter=d, policy=p), model, prompt, params)
            for name, d, p in (("plain", None, None), (drafter.name, drafter, Adaptive(drafter.trained, 1)))
        ]
        _race(sides, shown=count == args.max_new and sys.stdout.isatty())
    one, other = sides
    print(_picture(sides, _width()))
    if one.request.output != other.request.output:
        raise TurbosparkError("tokens_differ", "the two texts differ", "this must not happen: please report it")
    rounds = f", {other.request.stats.tokens_per_round:.2f} tokens a round" if other.request.stats.rounds else ""
    times = f", {other.speed / one.speed:.2f} times as fast" if one.speed else ", too few to tell speeds"
    print(f"\nthe same {len(one.request.output)} tokens{times}{rounds}")
    return 0


def _race(sides: list[Side], shown: bool) -> None:
    """Steps whoever has worked less, to the end of both."""
    lines, drawn = 0, time.perf_counter()
    while going := [side for side in sides if not side.request.done]:
        min(going, key=lambda side: side.seconds).work()
        if shown and time.perf_counter() - drawn > FRAME:
            # a picture taller than the screen would leave its upper lines behind
            picture = _picture(sides, _width()).split("\n")[-(shutil.get_terminal_size().lines - 2) :]
            print(_up(lines) + "\n".join(picture), flush=True)
            lines, drawn = len(picture), time.perf_counter()
    for side in sides:
        side.work()  # what is left of the text
    if lines:
        print(_up(lines), end="")


def _up(lines: int) -> str:
    """Back to the beginning of so many lines, all below cleared."""
    return f"\x1b[{lines}A\r\x1b[J" if lines else ""


def _width() -> int:
    return max(20, (min(shutil.get_terminal_size((100, 24)).columns, 160) - len(GAP)) // 2)


def _picture(sides: list[Side], width: int) -> str:
    """Both texts as columns."""
    columns = [[side.head(), "", *_wrapped(side.text, width)] for side in sides]
    height = max(map(len, columns))
    padded = [column + [""] * (height - len(column)) for column in columns]
    return "\n".join(
        f"{left[:width]:{width}}{GAP}{right[:width]}".rstrip() for left, right in zip(*padded, strict=True)
    )


def _wrapped(text: str, width: int) -> list[str]:
    lines = []
    for line in text.split("\n"):
        lines += textwrap.wrap(plain(line), width, replace_whitespace=False, drop_whitespace=False) or [""]
    return lines
