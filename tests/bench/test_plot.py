"""Plots as PNG files: the format, and what is drawn where."""

import struct
import zlib

import numpy as np
import pytest

from turbospark.bench.plot import CHARACTERS, COLOURS, EDGE, FONT, HEIGHT, INK, WIDTH, Line, Panel, encoded, png


def decoded(data):
    """The pixels of a PNG without filters; checks every chunk's length and sum."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, found = 8, {}
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack(">I", data[at + 8 + length : at + 12 + length])[0] == zlib.crc32(kind + body)
        found[kind] = body
        at += 12 + length
    assert list(found) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colours, *others = struct.unpack(">IIBBBBB", found[b"IHDR"])
    assert (depth, colours, others) == (8, 2, [0, 0, 0])
    rows = np.frombuffer(zlib.decompress(found[b"IDAT"]), np.uint8).reshape(height, 1 + 3 * width)
    assert not rows[:, 0].any()
    return rows[:, 1:].reshape(height, width, 3)


def places(pixels, colour):
    """(lowest and highest row, lowest and highest column) of a colour inside the axes, without the names."""
    inside = np.all(pixels[EDGE + 40 :] == colour, axis=-1)
    rows, columns = np.nonzero(inside)
    return rows.min() + EDGE + 40, rows.max() + EDGE + 40, columns.min(), columns.max()


def test_what_is_encoded_is_there_again():
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3)).astype(np.uint8)
    np.testing.assert_array_equal(decoded(encoded(pixels)), pixels)


def test_panels_lie_side_by_side():
    panel = Panel("a", "x", "y", 1, 1)
    assert decoded(png([panel, panel, panel])).shape == (HEIGHT, 3 * WIDTH, 3)


def test_a_line_goes_where_its_points_lie():
    line = Line("", [(2.0, 10.0), (8.0, 60.0)])
    low, high, left, right = places(decoded(png([Panel("", "", "", 10, 100, [line])])), COLOURS[0])
    across, up = (WIDTH - 2 * EDGE) / 10, (HEIGHT - 2 * EDGE) / 100
    expected = (HEIGHT - EDGE - 60 * up, HEIGHT - EDGE - 10 * up, EDGE + 2 * across, EDGE + 8 * across)
    assert (low, high, left, right) == pytest.approx(expected, abs=3)


def test_dots_are_not_joined():
    points = [(1.0, 10.0), (9.0, 50.0)]
    counts = [
        np.all(decoded(png([Panel("", "", "", 10, 100, [Line("", points, joined)])])) == COLOURS[0], axis=-1).sum()
        for joined in (True, False)
    ]
    assert counts[1] == 2 * 25 < counts[0]


def test_points_outside_stay_on_the_border():
    inside, outside = ([Line("", [(1.0, y)])] for y in (100.0, 300.0))
    first, second = (png([Panel("", "", "", 10, 100, lines)]) for lines in (inside, outside))
    assert first == second


def test_words_are_written_in_ink_and_unlike_characters_differ():
    blank, written = (decoded(png([Panel(title, "", "", 1, 1)])) for title in ("", "speed"))
    changed = np.any(blank != written, axis=-1)
    assert changed.any()
    assert {tuple(p) for p in written[changed]} == {INK}
    assert len(set(FONT.values())) >= len(CHARACTERS) - 3  # O and 0 and the like may share a shape
