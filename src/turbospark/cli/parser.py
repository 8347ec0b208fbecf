"""The commands and their flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import NamedTuple

from turbospark import __version__
from turbospark.cli import bench, compare, store, train
from turbospark.cli.arguments import (
    Parser,
    bytes_or_auto,
    count_or_auto,
    number,
    speculative,
    text,
    whole,
    whole_or_auto,
)
from turbospark.errors import TurbosparkError
from turbospark.kernels.registry import BACKENDS
from turbospark.memory import GUARDS

RESIDENCIES = ("auto", "resident", "streamed", "mapped")
MODEL = "an alias (see `turbospark list`), an install, a GGUF file (any part of a split one), or a Hugging Face folder"

RUN = """examples:
  turbospark run smollm2 "What is the capital of France, and what is it known for?"
  turbospark run smollm2                                    a chat; /help tells its commands
  turbospark run model.gguf --raw --max-new 40 "Once upon a time"
  cat question.txt | turbospark run model.gguf -
  turbospark run folder/ --messages-file talk.json --temperature 0 --seed 7

The answer goes to stdout, everything else to stderr. A sampling flag left out takes the model's own setting, else
temperature 0.7 and top-p 0.95. TURBOSPARK_DFLASH_DRAFT and TURBOSPARK_MTP_DRAFT hold a number of proposals for runs
without --speculative, 0 for none. Exit status: 0 done, 2 an error, 130 stopped by Ctrl-C."""

INFO = """examples:
  turbospark info smollm2
  turbospark info model.gguf --max-context 32768
  turbospark info --backend
  turbospark info folder/ --json

Exit status: 0 it would run, 1 it would not (the reasons are listed), 2 it could not be opened."""

PROBE = """examples:
  turbospark probe model.gguf
  turbospark probe folder/ && turbospark run folder/ "Hello"

Reads headers only. Exit status: 0 it would run, 1 it would not (the reasons are listed), 2 nothing is there."""

LIST = """examples:
  turbospark list
  turbospark list --json"""


RUN_ABOUT = "Answers a prompt, or chats where there is none."
INFO_ABOUT = "Shows a model's family, sizes, number formats, memory, chat template and end tokens, from its headers."
PROBE_ABOUT = "Says whether a file or folder would run, and what is missing where it would not."
LIST_ABOUT = "Shows the models known by name: whether they are on this machine, where, and how large they are."
CONTEXT = "positions of prompt and answer together; auto (the default): the model's own, as far as memory goes"


class Command(NamedTuple):
    flags: Callable[[Parser], None]
    help: str
    about: str
    epilog: str


def _json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON")


def _held(group: argparse._ActionsContainer) -> None:
    """Where weights are held, and in how much memory."""
    group.add_argument(
        "--expert-residency", choices=RESIDENCIES, default="auto", help="where routed experts are (default: auto)"
    )
    group.add_argument("--expert-cache-slots", metavar="N|auto", type=count_or_auto, help="streamed experts in memory")
    group.add_argument(
        "--memory", metavar="BYTES|auto", type=bytes_or_auto, help="for all there is, such as 4GB or 512MiB"
    )
    group.add_argument("--load-guard", choices=GUARDS, default="relaxed", help="auto leaves 0, 4, 8 or 12 GiB free")


def _info(info: Parser) -> None:
    info.add_argument("model", metavar="MODEL", nargs="?", help=MODEL)
    info.add_argument("--backend", action="store_true", help="what computes on this machine, and how; no model needed")
    info.add_argument("--max-context", metavar="N|auto", type=whole_or_auto, help=CONTEXT)
    _held(info)
    _json(info)


def _probe(probe: Parser) -> None:
    probe.add_argument("model", metavar="FILE_OR_FOLDER", help=MODEL)
    _json(probe)


def _run(run: Parser) -> None:
    run.add_argument("model", metavar="MODEL", help=MODEL)
    run.add_argument("prompt", metavar="PROMPT", nargs="?", type=text, help="`-` reads stdin; none begins a chat")

    prompt = run.add_argument_group("prompt")
    prompt.add_argument("--system", metavar="TEXT", type=text, help="the system message")
    prompt.add_argument("--messages-file", metavar="FILE", help="a JSON list of messages that come before the prompt")
    prompt.add_argument("--raw", action="store_true", help="complete the prompt as it is, without the chat template")

    length = run.add_argument_group("length")
    length.add_argument("--max-new", metavar="N", type=whole, help="tokens to produce at most (default: all that fit)")
    length.add_argument("--stop", metavar="TEXT", type=text, action="append", help="end before this text; repeatable")
    length.add_argument("--ignore-eos", action="store_true", help="go on past the model's end tokens")
    length.add_argument("--max-context", metavar="N|auto", type=whole_or_auto, help=CONTEXT)

    sampling = run.add_argument_group("sampling")
    sampling.add_argument("--temperature", metavar="X", type=number, help="0 takes the most likely token always")
    sampling.add_argument("--top-k", metavar="N", type=whole, help="only the N most likely tokens; 0: all")
    sampling.add_argument("--top-p", metavar="X", type=number, help="the likeliest tokens that hold X of all; 1: all")
    sampling.add_argument("--min-p", metavar="X", type=number, help="tokens at least X as likely as the best; 0: all")
    sampling.add_argument("--repetition-penalty", metavar="X", type=number, help="divides what was seen; 1: off")
    sampling.add_argument("--presence-penalty", metavar="X", type=number, help="-2 to 2, once for a produced token")
    sampling.add_argument("--frequency-penalty", metavar="X", type=number, help="-2 to 2, each time it was produced")
    sampling.add_argument("--seed", metavar="N", type=whole, help="the same seed gives the same answer; drawn if none")

    engine = run.add_argument_group("engine")
    engine.add_argument(
        "--speculative", metavar="off|auto|N", type=speculative, help="proposals a step, where there is a drafter"
    )
    engine.add_argument(
        "--speculative-drafter", metavar="auto|dflash|mtp|ngram|PATH", default="auto", help="which drafter proposes"
    )
    engine.add_argument("--prefill-chunk", metavar="N|auto", type=count_or_auto, help="prompt tokens a step")
    engine.add_argument("--backend", choices=("auto", *BACKENDS), default="auto", help="what computes (default: auto)")
    engine.add_argument("--threads", metavar="N", type=whole, help="of the CPU kernels (default: one for each core)")
    _held(engine)
    engine.add_argument("--exact", action="store_true", help="nothing is rounded below float32 on the way; slower")
    run.add_argument("--quiet", action="store_true", help="nothing but the answer, and errors")


COMMANDS = {
    "run": Command(_run, "answer a prompt, or chat", RUN_ABOUT, RUN),
    "info": Command(_info, "what a model is and what it needs", INFO_ABOUT, INFO),
    "probe": Command(_probe, "whether a model would run", PROBE_ABOUT, PROBE),
    "import": Command(store.import_flags, "copy a model into an install", store.IMPORT_ABOUT, store.IMPORT),
    "pull": Command(store.pull_flags, "fetch a model from the hub", store.PULL_ABOUT, store.PULL),
    "verify": Command(store.verify_flags, "whether an install is whole", store.VERIFY_ABOUT, store.VERIFY),
    "rm": Command(store.remove_flags, "delete an install", store.REMOVE_ABOUT, store.REMOVE),
    "train-drafter": Command(train.flags, train.HELP, train.ABOUT, train.EPILOG),
    "compare": Command(compare.flags, compare.HELP, compare.ABOUT, compare.EPILOG),
    "bench": Command(bench.flags, bench.HELP, bench.ABOUT, bench.EPILOG),
    "list": Command(_json, "the models known by name", LIST_ABOUT, LIST),
}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The flags of a command, and its name as `command`. Exits for --help and --version, raises `bad_arguments`."""
    if argv and argv[0] in COMMANDS:
        command = COMMANDS[argv[0]]
        parser = Parser(prog=f"turbospark {argv[0]}", description=command.about, epilog=command.epilog)
        command.flags(parser)
        # intermixed: a prompt may stand after flags
        return parser.parse_intermixed_args(argv[1:], argparse.Namespace(command=argv[0]))
    top = Parser(
        prog="turbospark",
        usage="turbospark COMMAND ...",
        description="Runs large open language models on one machine.",
        epilog="`turbospark COMMAND --help` tells a command's flags, with examples.",
    )
    top.add_argument("--version", action="version", version=f"turbospark {__version__}")
    listing = top.add_subparsers(title="commands", dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        listing.add_parser(name, help=command.help)
    top.parse_args(argv)
    raise TurbosparkError("bad_arguments", "the command comes first", "turbospark --help")
