"""Small plots as PNG files, drawn by hand: no plotting library is needed for a few lines and dots.

Source of the file format: RFC 2083.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

GROUND, INK, FAINT = (255, 255, 255), (40, 40, 40), (222, 222, 222)
COLOURS = ((31, 110, 180), (214, 96, 20), (46, 140, 70), (150, 70, 160), (120, 120, 120))
WIDTH, HEIGHT, EDGE = 460, 360, 56  # of a panel, and what lies around its axes; pixels

# five rows of three dots to a character, an octal digit a row
CHARACTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.-%/(),:+ "
DOTS = (
    "75557262277174771717557117471774757711227575775717"
    "25755656563444365556746477464434553557557222711152556554444757755"
    "65555255526564425563656553421672222555575555255775552555522271247"
    "00002007005124511244122214222400024020200272000000"
)
FONT = {character: DOTS[5 * i : 5 * i + 5] for i, character in enumerate(CHARACTERS)}


@dataclass
class Line:
    """Points (x, y) joined in their order, or dots alone."""

    name: str
    points: Sequence[tuple[float, float]]
    joined: bool = True


@dataclass
class Panel:
    """Lines over axes from 0 to `right` and to `top`; `diagonal`: where x equals y is drawn as well."""

    title: str
    x: str
    y: str
    right: float
    top: float
    lines: list[Line] = field(default_factory=list)
    diagonal: bool = False


def png(panels: Sequence[Panel]) -> bytes:
    """The panels side by side."""
    return encoded(np.concatenate([_drawn(panel) for panel in panels], axis=1))


def encoded(pixels: np.ndarray) -> bytes:
    """A PNG of uint8 [height, width, 3]."""
    height, width, _ = pixels.shape
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = lambda kind, data: struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows, 9)) + chunk(b"IEND", b"")


def _drawn(panel: Panel) -> np.ndarray:
    pixels = np.full((HEIGHT, WIDTH, 3), GROUND, np.uint8)
    left, bottom = EDGE, HEIGHT - EDGE
    across = lambda x: left + x / panel.right * (WIDTH - 2 * EDGE)
    up = lambda y: bottom - y / panel.top * (HEIGHT - 2 * EDGE)
    for value in _ticks(panel.top):
        _stroke(pixels, (left, up(value)), (WIDTH - EDGE, up(value)), FAINT)
        _write(pixels, f"{value:g}", left - 6, up(value) - 5, from_right=True)
    for value in _ticks(panel.right):
        _stroke(pixels, (across(value), bottom), (across(value), EDGE), FAINT)
        _write(pixels, f"{value:g}", across(value) - 4, bottom + 6)
    _stroke(pixels, (left, bottom), (WIDTH - EDGE, bottom), INK)
    _stroke(pixels, (left, bottom), (left, EDGE), INK)
    if panel.diagonal:
        most = min(panel.right, panel.top)
        _stroke(pixels, (across(0), up(0)), (across(most), up(most)), (150, 150, 150))
    _write(pixels, panel.title, left, 10)
    _write(pixels, panel.x, left, HEIGHT - 24)
    _write(pixels, panel.y, 6, EDGE - 22)
    for i, line in enumerate(panel.lines):
        colour = COLOURS[i % len(COLOURS)]
        places = [(across(min(x, panel.right)), up(min(y, panel.top))) for x, y in line.points]
        for one, next_ in pairwise(places):
            if line.joined:
                _stroke(pixels, one, next_, colour)
        for x, y in places:
            _fill(pixels, x - 2, y - 2, 5, 5, colour)
        _write(pixels, line.name, WIDTH - EDGE - 4, EDGE + 4 + 14 * i, colour, from_right=True)
    return pixels


def _ticks(most: float) -> list[float]:
    step = next(s for s in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1e9) if most / s <= 8)
    return [round(step * i, 6) for i in range(1 + int(most / step + 1e-9))]


def _fill(pixels: np.ndarray, x: float, y: float, width: int, height: int, colour: Sequence[int]) -> None:
    left, above = max(0, round(x)), max(0, round(y))
    pixels[above : above + height, left : left + width] = colour


def _stroke(pixels: np.ndarray, start: tuple[float, float], end: tuple[float, float], colour: Sequence[int]) -> None:
    steps = 1 + round(max(abs(end[0] - start[0]), abs(end[1] - start[1])))
    for share in np.linspace(0, 1, steps + 1):
        x, y = (a + share * (b - a) for a, b in zip(start, end, strict=True))
        _fill(pixels, x, y, 1, 1, colour)


def _write(
    pixels: np.ndarray, text: str, x: float, y: float, colour: Sequence[int] = INK, from_right: bool = False
) -> None:
    """Capital letters, two pixels a dot; what the font lacks stays blank."""
    if from_right:
        x -= 8 * len(text)
    for i, character in enumerate(text.upper()):
        for row, dots in enumerate(FONT.get(character, FONT[" "])):
            for column in range(3):
                if int(dots) >> 2 - column & 1:
                    _fill(pixels, x + 8 * i + 2 * column, y + 2 * row, 2, 2, colour)
