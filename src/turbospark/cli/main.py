"""The `turbospark` command: arguments in, an exit status out, every failure as one line."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from turbospark.cli.output import note, report
from turbospark.cli.parser import parse
from turbospark.errors import TurbosparkError

FAILED, INTERRUPTED, PIPE_CLOSED = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. Returns its exit status: 0, 1 for a "no", 2 for an error, 130 for Ctrl-C."""
    _prepare_streams()
    try:
        status = _dispatch(sys.argv[1:] if argv is None else argv)
        sys.stdout.flush()
        return status
    except TurbosparkError as error:
        report(error)
    except KeyboardInterrupt:
        note("")
        return INTERRUPTED
    except BrokenPipeError:
        # the reader has left; what is still buffered must not fail again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except MemoryError:
        report(TurbosparkError("out_of_memory", "the machine gave no more memory", "try a smaller --max-context"))
    except OSError as error:
        report(TurbosparkError("system_error", str(error)))
    return FAILED


def _dispatch(argv: Sequence[str]) -> int:
    try:
        args = parse(argv)
    except SystemExit as done:  # --help and --version
        return int(done.code or 0)
    # each command brings its own imports: help and errors come at once
    if args.command == "run":
        from turbospark.cli.run import run

        return run(args)
    if args.command == "train-drafter":
        from turbospark.cli.train import train

        return train(args)
    if args.command == "compare":
        from turbospark.cli.compare import compare

        return compare(args)
    if args.command == "bench":
        from turbospark.cli.bench import bench

        return bench(args)
    from turbospark.cli import show, store

    commands = {"info": show.info, "probe": show.probe, "list": show.aliases}
    commands |= {"import": store.import_, "pull": store.pull, "verify": store.verify, "rm": store.remove}
    return commands[args.command](args)


def _prepare_streams() -> None:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    # a terminal that cannot show a character is no reason to stop, and what stdin cannot read is refused by name
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
