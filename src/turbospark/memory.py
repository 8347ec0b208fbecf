"""How much memory there is, and how much of it this process may still use."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

RESERVE = 4 << 30
GUARDS = {"off": 0, "relaxed": RESERVE, "balanced": 8 << 30, "strict": 12 << 30}
UNLIMITED = 1 << 60  # cgroup v1 writes no limit as a number of about 2^63


@dataclass(frozen=True)
class Memory:
    """Bytes: `total` is the machine's or the tightest limit on this process, `available` what is free of it.

    guard: what an automatic choice leaves to the machine, never more than half of it.
    """

    total: int
    available: int
    guard: int = RESERVE

    @property
    def budget(self) -> int:
        """What an automatic choice may take."""
        return max(0, self.available - min(self.guard, self.total // 2))

    def within(self, asked: int | None, guard: int, own: int) -> Memory:
        """What an automatic choice has under a stated number, the whole of a process that has `own` bytes already.

        Without a number the guard is left to the machine. A number that is the limit of a group is held to by the
        group's own count, which leaves out what other groups have paid for.
        """
        if asked is None:
            return replace(self, guard=guard)
        left = self.available if asked == self.total else min(self.available, asked - own)
        return Memory(asked, max(0, left), guard=0)


def read_memory(root: Path = Path("/")) -> Memory:
    """The machine's memory, and every cgroup (v1 and v2) and address-space limit above this process."""
    total, available = _machine(root)
    for limit, used in _limits(root):
        total, available = min(total, limit), min(available, max(0, limit - used))
    return Memory(total, available)


def own_bytes() -> int:
    """What is resident of this process now, its libraries included; 0 where the system does not tell."""
    pages = _text(Path("/proc/self/statm")).split()[1:2]
    return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0


def peak_bytes() -> int:
    """The largest resident size this process has had, mapped files included."""
    mark = re.search(r"^VmHWM:\s+(\d+) kB", _text(Path("/proc/self/status")), re.MULTILINE)
    if mark is not None:
        return int(mark[1]) * 1024
    import resource  # its mark begins at that of the process which started this one

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _machine(root: Path) -> tuple[int, int]:
    told: dict[str, str] = dict(re.findall(r"^(\w+):\s+(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE))
    if "MemTotal" in told:
        total = int(told["MemTotal"]) * 1024
        return total, int(told.get("MemAvailable", told.get("MemFree", told["MemTotal"]))) * 1024
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return total, total


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use that cannot be reclaimed) of each group this process is in."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup/unified")
            for group in (g for mount in mounts for g in _groups(mount, path)):
                bounds = [b for b in (_number(group / "memory.max"), _number(group / "memory.high")) if b is not None]
                if bounds:
                    yield min(bounds), _used(group, "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            for group in _groups(root / "sys/fs/cgroup/memory", path):
                limit = _number(group / "memory.limit_in_bytes")
                if limit is not None and limit < UNLIMITED:
                    yield limit, _used(group, "memory.usage_in_bytes", "total_inactive_file")


def _groups(mount: Path, path: str) -> list[Path]:
    """A group and those above it; inside a container only the mount's own root may be there."""
    below = mount / path.strip("/")
    return [below, *(p for p in below.parents if p == mount or mount in p.parents)] if below != mount else [mount]


def _used(group: Path, current: str, reclaimable: str) -> int:
    cached = re.search(rf"^{reclaimable} (\d+)", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, (_number(group / current) or 0) - int(cached[1] if cached else 0))


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""
