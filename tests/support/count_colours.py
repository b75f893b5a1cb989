#!/usr/bin/env python3
"""Counts the pixels of colours in a PNG: count_colours.py picture.png 4e79a7 ffffff …

Prints JSON: width, height, how many colours there are, and for each colour asked for its number of pixels.
Reads what browsers write: eight bits a channel, RGB or RGBA, not interlaced.
"""

import collections
import json
import struct
import sys
import zlib


def chunks(data):
    """(type, content) of a PNG's chunks."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "not a PNG"
    at = 8
    while at < len(data):
        (length,) = struct.unpack(">I", data[at : at + 4])
        yield data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        at += 12 + length


def paeth(left, up, corner):
    guess = left + up - corner
    return min((left, up, corner), key=lambda value: abs(guess - value))


def unfilter(kind, line, above, size):
    """A line of pixels of `size` bytes from what its filter left (PNG 1.2, section 6)."""
    if kind == 2:
        return bytearray((x + up) & 255 for x, up in zip(line, above))
    if kind == 0:
        return line
    for i, x in enumerate(line):
        left, corner = (line[i - size], above[i - size]) if i >= size else (0, 0)
        line[i] = (x + (left, 0, (left + above[i]) // 2, paeth(left, above[i], corner))[kind - 1]) & 255
    return line


def colours(data):
    """Width, height and the number of pixels of each colour."""
    header, packed = None, b""
    for kind, content in chunks(data):
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", content)
        elif kind == b"IDAT":
            packed += content
    width, height, depth, colour, _, _, interlaced = header
    assert depth == 8 and colour in (2, 6) and not interlaced, header
    size = 3 if colour == 2 else 4
    raw, counts = zlib.decompress(packed), collections.Counter()
    above = bytearray(width * size)
    for y in range(height):
        begin = y * (width * size + 1)
        above = unfilter(raw[begin], bytearray(raw[begin + 1 : begin + 1 + width * size]), above, size)
        counts.update(zip(above[0::size], above[1::size], above[2::size]))
    return width, height, counts


def main(path, *wanted):
    with open(path, "rb") as file:
        width, height, counts = colours(file.read())
    found = {colour: counts[tuple(bytes.fromhex(colour))] for colour in wanted}
    print(json.dumps({"width": width, "height": height, "colours": len(counts), "pixels": found}))


if __name__ == "__main__":
    main(*sys.argv[1:])
