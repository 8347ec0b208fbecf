"""The chat: a prompt line, an answer, and the conversation so far with each."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from turbospark.cli.answer import answer, tell
from turbospark.cli.output import note, report
from turbospark.engine.params import SamplingParams
from turbospark.errors import TurbosparkError
from turbospark.runtime import LanguageModel, Prompt

HELP = """/clear    forget the conversation
/help     these lines
/exit     leave, as does Ctrl-D
Ctrl-C    stop the answer; what was said stays in the conversation"""


class Chat:
    """`opening` messages come before every conversation. raw: each line is completed as it is, by itself."""

    def __init__(
        self, model: LanguageModel, params: SamplingParams, opening: list[Mapping[str, Any]], raw: bool, quiet: bool
    ):
        self.model, self.params, self.raw, self.quiet = model, params, raw, quiet
        self.opening = opening
        self.messages = list(opening)

    def run(self) -> int:
        """Until Ctrl-D, the end of stdin or /exit."""
        watched = sys.stdin.isatty() and sys.stdout.isatty()
        if watched:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  # input() then edits lines and remembers them
        if not self.quiet:
            note("/help tells the commands, Ctrl-D leaves")
        while True:
            try:
                line = input("> " if watched else "").strip()
            except EOFError:
                if watched:
                    note("")
                return 0
            except KeyboardInterrupt:
                note("\nCtrl-D or /exit leaves")
                continue
            if line == "/exit":
                return 0
            self._take(line)

    def _take(self, line: str) -> None:
        if line == "/clear":
            self.messages = list(self.opening)
        elif line == "/help":
            note(HELP)
        elif line.startswith("/") and line[1:].isalpha():
            note(f"{line} is no command; /help tells them")
        elif line:
            try:
                self._answer(line)
            except TurbosparkError as error:
                report(error)

    def _answer(self, line: str) -> None:
        try:
            line.encode()
        except UnicodeEncodeError as error:
            raise TurbosparkError("not_utf8", f"the line is not UTF-8 at character {error.start}") from None
        asked = [*self.messages, {"role": "user", "content": line}]
        prompt: Prompt = line if self.raw else asked
        completion = answer(self.model, prompt, self.params)
        self.messages = [*asked, {"role": "assistant", "content": completion.text}]
        tell(completion, self.quiet)
