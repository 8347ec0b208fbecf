"""`run`: one prompt, or a chat."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turbospark.catalog import resolve
from turbospark.cli.answer import answer, tell
from turbospark.cli.chat import Chat
from turbospark.cli.output import Progress, note
from turbospark.cli.speculation import Asked
from turbospark.engine.params import SamplingParams
from turbospark.errors import TurbosparkError
from turbospark.kernels.cpu.progress import progress as compiling
from turbospark.runtime import LanguageModel, load

SAMPLING = (
    *("max_new", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "seed", "stop", "ignore_eos"),
)
INTERRUPTED = 130


def run(args: Any) -> int:
    params = SamplingParams(**{name: getattr(args, name) for name in SAMPLING})
    asked = Asked(args)
    params = asked.into(params)
    messages = _messages(args)
    prompt = _stdin() if args.prompt == "-" else args.prompt
    model = _load(args, asked)
    asked.check(model, args.quiet)
    raw = args.raw or not _has_template(model, messages, args.quiet)
    if prompt is None and not args.messages_file:
        return Chat(model, params, messages, raw, args.quiet).run()
    if prompt is not None and not raw:
        messages.append({"role": "user", "content": prompt})
    completion = answer(model, prompt if raw else messages, params)
    tell(completion, args.quiet)
    return INTERRUPTED if completion.finish_reason == "cancelled" else 0


def _load(args: Any, asked: Asked) -> LanguageModel:
    path = resolve(args.model, None if args.quiet else note)
    progress = Progress(f"opening {path.name}")
    chunk = {} if args.prefill_chunk is None else {"chunk": args.prefill_chunk}
    tell_of = None if args.quiet else note
    options: dict[str, Any] = {"drafter": asked.drafter, "progress": progress, "note": tell_of, **chunk}
    options |= {"exact": args.exact, "threads": args.threads}
    options |= {"expert_residency": args.expert_residency, "expert_cache_slots": args.expert_cache_slots}
    options |= {"memory": args.memory, "load_guard": args.load_guard}
    compiling.quiet = args.quiet
    try:
        model = load(path, args.backend, args.max_context, slots=1, **options)
    except TurbosparkError as error:
        raise (asked.unmet(error) if error.code == "no_drafter" else error) from None
    finally:
        progress.close()
    if not args.quiet and model.residency.name != "mapped":
        note(model.placement.why)
    return model


def _messages(args: Any) -> list[Mapping[str, Any]]:
    """The messages before the prompt: --system, then those of --messages-file."""
    if args.raw and (args.system is not None or args.messages_file):
        given = "--system" if args.system is not None else "--messages-file"
        raise TurbosparkError("bad_arguments", f"{given} needs the chat template, and --raw does without", "give one")
    messages: list[Mapping[str, Any]] = []
    if args.system is not None:
        messages.append({"role": "system", "content": args.system})
    if args.messages_file:
        messages += _read_messages(Path(args.messages_file))
    if [m["role"] for m in messages[:2]] == ["system", "system"]:
        raise TurbosparkError(
            "bad_arguments", f"--system and {args.messages_file} both give a system message", "give one"
        )
    return messages


def _read_messages(path: Path) -> list[Mapping[str, Any]]:
    try:
        value = json.loads(path.read_bytes())
    except OSError as error:
        raise TurbosparkError("file_unreadable", f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise TurbosparkError("bad_messages", f"{path} is not JSON: {error}") from None
    if not isinstance(value, list) or not value:
        raise TurbosparkError("bad_messages", f"{path} must hold a list of messages, at least one")
    for number, message in enumerate(value):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            hint = 'a message is {"role": "user", "content": "..."}'
            raise TurbosparkError("bad_messages", f"message {number} of {path} has no role", hint)
    return value


def _has_template(model: LanguageModel, messages: list[Mapping[str, Any]], quiet: bool) -> bool:
    """Whether prompts go through the chat template; says so once where there is none."""
    if model.tokenizer is None:
        hint = "a tokenizer.json belongs into the folder"
        raise TurbosparkError("no_tokenizer", f"{model.checkpoint.path} has no tokenizer, so it reads no text", hint)
    if model.tokenizer.has_chat_template:
        return True
    if messages:
        raise TurbosparkError("no_chat_template", "messages need a chat template, and this model has none", "use --raw")
    if not quiet:
        note("this model has no chat template: prompts are completed as they are, as with --raw")
    return False


def _stdin() -> str:
    """All of stdin, without its last line end."""
    try:
        return sys.stdin.buffer.read().decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise TurbosparkError("not_utf8", f"stdin is not UTF-8 at byte {error.start}") from None
