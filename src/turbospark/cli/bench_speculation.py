"""`turbospark bench --speculative`: what a drafter does for a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from turbospark.cli.arguments import Parser, number, text, whole
from turbospark.cli.output import note
from turbospark.errors import TurbosparkError


def flags(parser: Parser) -> None:
    group = parser.add_argument_group("with a drafter")
    group.add_argument("--speculative", action="store_true", help="measure acceptance and speed with a drafter")
    group.add_argument(
        "--speculative-drafter", metavar="D", type=text, default="auto", help="auto, dflash, mtp, ngram, or a path"
    )
    group.add_argument(
        "--proposals", metavar="N,...", type=text, default="1,2,3,5,7,auto", help="in turn (default 1,2,3,5,7,auto)"
    )
    group.add_argument("--kinds", metavar="KIND,...", type=text, default="code,arithmetic,prose", help="of prompts")
    group.add_argument("--prompts", metavar="N", type=whole, default=2, help="of each kind (default 2)")
    group.add_argument("--temperature", metavar="X", type=number, default=0.0, help="of the answers (default 0)")
    group.add_argument("--plot", metavar="FILE", type=Path, help="a PNG of acceptance, and of predicted speed")


def bench(args: argparse.Namespace, threads: list[int]) -> int:
    import turbospark
    from turbospark.bench import speculation

    kinds = tuple(args.kinds.split(","))
    if unknown := [kind for kind in kinds if kind not in speculation.KINDS]:
        known = ", ".join(speculation.KINDS)
        raise TurbosparkError("bad_arguments", f"--kinds: {unknown[0]!r} is not known; known: {known}")
    if args.prompts < 1:
        raise TurbosparkError("bad_arguments", f"--prompts must be at least 1, has {args.prompts}")
    if len(args.model) > 1:
        raise TurbosparkError("bad_arguments", f"--speculative takes one model, has {len(args.model)}")
    if args.plot is not None and len(threads) > 1:
        raise TurbosparkError("bad_arguments", f"--plot takes one --threads, has {len(threads)}")
    tokens = args.tokens or 600
    plan = speculation.Plan(kinds, _settings(args.proposals), args.prompts, tokens, args.temperature)
    for count in threads:
        named = args.speculative_drafter
        model = turbospark.load(args.model[0], "cpu", plan.context, slots=1, drafter=named, threads=count, note=note)
        report = speculation.measure(model, args.model[0], count, plan, note)
        print(speculation.as_json(report) if args.json else speculation.table(report))
        if args.plot is not None:
            args.plot.write_bytes(speculation.plot(report))
    return 0


def _settings(given: str) -> tuple[int | str, ...]:
    try:
        return tuple(part if part == "auto" else int(part) for part in given.split(","))
    except ValueError:
        message = f"--proposals takes numbers and auto, such as 1,3,auto, has {given[:60]!r}"
        raise TurbosparkError("bad_arguments", message) from None
