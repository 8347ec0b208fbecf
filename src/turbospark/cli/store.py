"""`import`, `pull`, `verify` and `rm`: models as installs of their own."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from turbospark.catalog import ALIASES, resolve
from turbospark.cli.arguments import Parser
from turbospark.cli.output import Transfer, note, plain
from turbospark.errors import TurbosparkError
from turbospark.units import size

IMPORT_ABOUT = "Copies a model into an install: one folder, checked by hashes, its experts laid out to be streamed."
IMPORT = """examples:
  turbospark import model.gguf --alias mine
  turbospark import folder/ --alias mine-q8 --quantize q8_0
  turbospark import model.gguf --alias mine --drafter drafter-folder/
  turbospark import OWNER/NAME                              the same as pull

A GGUF's blocks are kept byte for byte. An import that was stopped goes on when it is started again; until it is
complete, nothing of it opens. Installs lie in TURBOSPARK_HOME (default ~/.turbospark)."""
PULL_ABOUT = "Fetches a model from the Hugging Face hub into an install."
PULL = """examples:
  turbospark pull smollm2
  turbospark pull OWNER/NAME --alias mine
  turbospark pull OWNER/NAME-GGUF --file NAME-Q8_0.gguf --alias mine

Needs huggingface_hub. HF_TOKEN is used where a model asks for one. A download that was stopped goes on."""
VERIFY_ABOUT = "Reads an install whole and compares it with its manifest: sizes, hashes, layout, declarations."
VERIFY = """examples:
  turbospark verify mine
  turbospark verify path/to/NAME.gturbo --json

Exit status: 0 sound, 1 not (the faults are listed), 2 nothing is there."""
REMOVE_ABOUT = "Deletes an install, and what an import of it left unfinished."
REMOVE = """examples:
  turbospark rm mine"""
ALIAS = "what the install is called (default: what the source is called)"
SPLIT = re.compile(r"-\d{5}-of-\d{5}$")


def import_flags(parser: Parser) -> None:
    source = "a GGUF file (any part of a split one), a Hugging Face folder, an alias, or OWNER/NAME on the hub"
    parser.add_argument("source", metavar="SOURCE", help=source)
    _common(parser)


def pull_flags(parser: Parser) -> None:
    parser.add_argument("source", metavar="OWNER/NAME", help="a repository on the hub, or an alias")
    parser.add_argument("--file", metavar="FILE", help="which GGUF, where the repository has several")
    parser.add_argument("--revision", metavar="NAME", help="a branch, tag or commit of the repository")
    _common(parser)


def _common(parser: Parser) -> None:
    parser.add_argument("--alias", metavar="NAME", help=ALIAS)
    parser.add_argument("--drafter", metavar="PATH", help="a drafter to take along: its folder or file")
    parser.add_argument("--quantize", choices=("q8_0", "int4"), help="matrices of a source in plain floats")
    parser.add_argument("--quiet", action="store_true", help="nothing but errors")


def verify_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="NAME", help="an alias of an install, or its folder")
    parser.add_argument("--json", action="store_true", help="as JSON")


def remove_flags(parser: Parser) -> None:
    parser.add_argument("model", metavar="NAME", help="an alias of an install")


def import_(args: Any) -> int:
    from turbospark.store.hub import is_repository

    if not os.path.exists(args.source) and args.source not in ALIASES and is_repository(args.source):
        args.file = args.revision = None
        return pull(args)
    path = resolve(args.source, None if args.quiet else note)
    _import(args, path, _name(args.source, path) if args.alias is None else args.alias)
    return 0


def pull(args: Any) -> int:
    from turbospark.store import home, hub

    known = ALIASES.get(args.source)
    repository, file = (args.source, args.file) if known is None else (known.repository, args.file or known.file)
    own = args.source.rpartition("/")[2] if known is None else known.name
    alias = own if args.alias is None else args.alias
    home.check_alias(alias)
    if home.is_taken(alias):
        raise home.taken(alias)
    remote = hub.look_up(repository, file, args.revision)
    if not args.quiet:
        note(f"fetching {len(remote.files)} files ({size(remote.nbytes)}) of {repository} at {remote.commit[:12]}")
    _import(args, hub.fetch(remote, alias), alias)
    hub.clean(alias)
    return 0


def verify(args: Any) -> int:
    from turbospark.formats.manifest import is_install
    from turbospark.store.verify import verify as faults_of

    path = resolve(args.model)
    if not path.is_dir() or not is_install(path):
        message = f"{path} is no install, so there is nothing to hold it against"
        raise TurbosparkError("not_installed", message, "turbospark probe says whether it would run")
    progress = Transfer(f"reading {path.name}")
    try:
        faults = faults_of(path, progress)
    finally:
        progress.close()
    if args.json:
        json.dump({"path": str(path), "sound": not faults, "faults": faults}, sys.stdout, indent=2)
        print()
        return 1 if faults else 0
    print(f"{plain(str(path))}: {'sound' if not faults else f'{len(faults)} faults'}")
    for fault in faults:
        print(f"  {plain(fault)}")
    return 1 if faults else 0


def remove(args: Any) -> int:
    from turbospark.store.home import remove as remove_install

    note(f"removed {args.model}, {size(remove_install(args.model))} freed")
    return 0


def _import(args: Any, path: Path, alias: str) -> None:
    from turbospark.store.repack import import_model, left_out

    drafter = None if args.drafter is None else Path(args.drafter)
    progress = Transfer(f"importing {path.name}")
    tell = (lambda done, total: None) if args.quiet else progress
    try:
        made = import_model(path, alias, drafter, args.quantize, tell)
    except KeyboardInterrupt:
        progress.close()
        note(f"stopped; the same import of {alias} goes on from here, turbospark rm {alias} forgets it")
        raise
    finally:
        progress.close()
    if args.quiet:
        return
    if made.left_out:
        note(left_out(made.left_out))
    note(f"{alias}: {size(made.nbytes)} in {made.path}")
    if alias in ALIASES:
        note(f"from now on {alias} is this install, not {ALIASES[alias].about}")


def _name(said: str, path: Path) -> str:
    """An alias from what a source is called."""
    if said in ALIASES:
        return said
    path = path.resolve()
    return SPLIT.sub("", path.stem) if path.suffix in (".gguf", ".gturbo") else path.name
