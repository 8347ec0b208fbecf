"""What was asked of speculation, by flags and variables, and what it did, as the last lines of an answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from turbospark.cli.output import note, plain
from turbospark.engine.params import SamplingParams
from turbospark.engine.request import Stats
from turbospark.environment import draft_block, spec_stats
from turbospark.errors import TurbosparkError
from turbospark.runtime import LanguageModel


class Asked:
    """speculative: "off", "auto" or a number of proposals. drafter: its kind or path, None for none. by: the flag or
    variable that insists on one."""

    def __init__(self, args: Any):
        self.speculative: str | int = "auto" if args.speculative is None else args.speculative
        self.drafter: str | None = args.speculative_drafter
        self.by = f"--speculative {args.speculative}" if isinstance(args.speculative, int) else None
        fixed = draft_block()
        if args.speculative is None and fixed is not None:
            name, kind, count = fixed
            self.speculative, self.by = count or "off", f"{name}={count}" if count else None
            self.drafter = kind if self.drafter == "auto" else self.drafter
        elif self.by is None and self.drafter != "auto":
            self.by = f"--speculative-drafter {self.drafter}"
        if self.speculative == "off":
            self.drafter = self.by = None
        named = args.speculative_drafter if args.speculative_drafter != "auto" else None
        self.unused: str | None = named if self.drafter is None else None  # named, and will not be opened

    def into(self, params: SamplingParams) -> SamplingParams:
        """The parameters with it; a number that is too large is refused by the flag's or the variable's name."""
        try:
            return replace(params, speculative=self.speculative)
        except TurbosparkError as error:
            raise TurbosparkError(error.code, f"{self.by}: {error.message}", error.hint) from None

    def unmet(self, error: TurbosparkError) -> TurbosparkError:
        """The error over a drafter that is not there, with the flag or variable that insists on it in front."""
        return TurbosparkError(error.code, f"{self.by} needs a drafter: {error.message}", error.hint)

    def check(self, model: LanguageModel, quiet: bool) -> None:
        """Refuses what needs a drafter where there is none; says when it is asked for more than it was made for, and
        when the one that was named stays closed."""
        drafter, count = model.engine.drafter, self.speculative
        if self.unused is not None and not quiet:
            note(f"the drafter {plain(self.unused)} is not opened: speculation is off")
        if self.by is not None:
            model.require_drafter(self.by)
        if drafter is not None and isinstance(count, int) and count > drafter.trained and not quiet:
            note(f"{count} proposals of a drafter that was made for {drafter.trained}: served all the same")


def told(stats: Stats, quiet: bool) -> Iterator[str]:
    """The lines on what speculation did; none where there was no round."""
    if not stats.rounds:
        return
    if spec_stats():
        counts = f"proposed {stats.proposed}, accepted {stats.accepted}"
        yield f"[rounds {stats.rounds}, rollbacks {stats.rollbacks}, {counts}]"
        pairs = zip(stats.accepted_by_position, stats.proposed_by_position, strict=True)
        yield "[accepted by position " + ", ".join(f"{kept}/{made}" for kept, made in pairs) + "]"
    if quiet:
        return
    if stats.collapsed:
        kept, made = stats.accepted_by_position[0], stats.proposed_by_position[0]
        yield f"warning: {kept} of {made} first proposals were right: is the drafter made for this model?"
    yield summary(stats)


def summary(stats: Stats) -> str:
    """One line: tokens a round, acceptance by position, rounds, where the time went, and the gain."""
    pairs = zip(stats.accepted_by_position, stats.proposed_by_position, strict=True)
    shares = " ".join(f"{100 * kept / made:.0f}" for kept, made in pairs)
    parts = [
        f"speculation {stats.tokens_per_round:.2f} tokens a round",
        f"accepted {shares} % by position" if shares else "nothing proposed",
        f"{stats.rounds} rounds",
        f"draft {stats.draft_s:.2f} s",
        f"verify {stats.verify_s:.2f} s",
        f"commit {stats.commit_s:.2f} s",
    ]
    gain, step = stats.speed_up, 1e3 * stats.plain_step_s
    parts.append("no plain step measured" if gain is None else f"{gain:.2f}x its plain step of {step:.1f} ms")
    return plain(f"[{', '.join(parts)}]")
