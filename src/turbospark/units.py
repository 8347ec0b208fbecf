"""Numbers as people read them."""

from __future__ import annotations


def size(nbytes: float) -> str:
    """Bytes in decimal units, as disks and downloads state them: "98.4 MB"."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "bytes" or nbytes >= 100 else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
