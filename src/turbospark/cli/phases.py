"""What experts on disk cost an answer, and with TURBOSPARK_PHASES where the time went."""

from __future__ import annotations

from collections.abc import Iterator

from turbospark.engine.request import Stats
from turbospark.environment import phases
from turbospark.experts.traffic import Traffic
from turbospark.units import size


def costs(stats: Stats, quiet: bool) -> Iterator[str]:
    """Lines for what experts cost one answer; none where they do not stream and nobody asks for phases."""
    traffic = stats.experts
    if traffic.tokens and not quiet:
        yield f"[{summary(traffic)}]"
    if phases():
        spans = {"routing": traffic.route_s, "shared experts": traffic.shared_s, "experts": traffic.experts_s}
        spans |= {"waiting for experts": traffic.wait_s, "drafting": stats.draft_s}
        spans["all else"] = max(0.0, stats.total_s - sum(spans.values()))
        yield f"[{', '.join(f'{name} {seconds:.2f} s' for name, seconds in spans.items())} of {stats.total_s:.2f} s]"


def summary(traffic: Traffic) -> str:
    """Hits, bytes read and time waited, in one line."""
    parts = [
        f"experts {traffic.hit_rate:.1%} there",
        f"{size(traffic.bytes_read)} read",
        f"{1e3 * traffic.wait_per_token_s:.1f} ms waited a token",
    ]
    if traffic.precision is not None:
        parts.append(f"{traffic.precision:.0%} of those read ahead were used")
    return ", ".join(parts)
