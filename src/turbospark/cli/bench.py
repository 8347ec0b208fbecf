"""`turbospark bench`: flags to a measurement, its table to stdout."""

from __future__ import annotations

import argparse
import os

from turbospark.cli import bench_speculation
from turbospark.cli.arguments import Parser, text, whole
from turbospark.cli.output import note
from turbospark.errors import TurbosparkError

ABOUT = "Measures how fast a model runs on this machine's CPU, alone or beside llama.cpp."
HELP = "measure how fast a model runs"
EPILOG = """examples:
  turbospark bench smollm2
  turbospark bench smollm2 --against llama.cpp --threads 1,2
  turbospark bench model.gguf --against llama.cpp --tokens 16 --rounds 3 --json
  turbospark bench smollm2 --speculative --proposals 1,3,7,auto --plot smollm2.png

Prompts are random token ids and answers greedy. Both sides run in processes of their own and take turns; medians are
reported. llama.cpp runs through the package llama-cpp-python. Leave the machine to it: anything else that runs is
measured as well."""


def flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="MODEL", nargs="+", help="aliases, GGUF files or folders")
    parser.add_argument("--against", choices=("llama.cpp",), help="what to run beside it, in turns")
    parser.add_argument("--threads", metavar="N,...", type=text, help="one run for each (default: 1 and all cores)")
    parser.add_argument("--prompt", metavar="N", type=whole, default=512, help="tokens of the prompt (default 512)")
    parser.add_argument("--tokens", metavar="N", type=whole, help="tokens of an answer (default 64, or 600)")
    parser.add_argument("--rounds", metavar="N", type=whole, default=5, help="of both (default 5)")
    parser.add_argument("--json", action="store_true", help="every time taken, as JSON")
    bench_speculation.flags(parser)


def bench(args: argparse.Namespace) -> int:
    from turbospark.bench import against

    for name in ("prompt", "tokens", "rounds"):
        given = getattr(args, name)
        if given is not None and given < 1:
            raise TurbosparkError("bad_arguments", f"--{name} must be at least 1, has {given}")
    if args.speculative:
        if args.against is not None:
            raise TurbosparkError("bad_arguments", "--against and --speculative are two measurements", "give one")
        return bench_speculation.bench(args, _threads(args.threads))
    plan = against.Plan(args.prompt, args.tokens or 64, args.rounds)
    results = []
    for model in args.model:
        for threads in _threads(args.threads):
            note(f"{model}, {threads} thread{'s' * (threads > 1)}")
            results.append(against.compare(model, threads, plan, args.against))
    print(against.as_json(results) if args.json else against.table(results))
    return 0


def _threads(given: str | None) -> list[int]:
    cores = os.cpu_count() or 1
    if given is None:
        return sorted({1, cores})
    try:
        counts = [int(part) for part in given.split(",")]
    except ValueError:
        raise TurbosparkError("bad_arguments", f"--threads takes numbers such as 1,2, has {given[:60]!r}") from None
    if min(counts) < 1:
        raise TurbosparkError("bad_arguments", f"--threads must be at least 1, has {min(counts)}")
    return counts
