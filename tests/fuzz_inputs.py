"""Inputs that no reader was written for: seeds that are bent, and soups of a format's own pieces. At most 4 KB each, by seed."""

from __future__ import annotations

import hashlib
import json
import math
import pickle
import pickletools
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import yaml

LARGEST = 4096

Generator: TypeAlias = Callable[[random.Random], bytes]

_NUMBERS = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 7, 2**31, 2**63, -(2**63), 10**40, 0.0, -0.5, 1e-320, 1e308, math.inf, -math.inf, math.nan,
    "", " ", "0", "-1", "7",
    "1e999", "nan", "../x", "/", "a" * 300, "\x00", "ü", "\ud800", "日本", "{}", "%s", [], {}, [[]], [None], {"": None},
)  # fmt: skip


def bend_bytes(seed: bytes, chance: random.Random) -> bytes:
    """Bends a file as disks, transfers and attackers do: bits, lengths, cuts, repeats."""
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3, 8, 32))):
        if not data:
            break
        place = chance.randrange(len(data))
        match chance.randrange(8):
            case 0:
                data[place] ^= 1 << chance.randrange(8)
            case 1:
                data[place] = chance.randrange(256)
            case 2:
                del data[place : place + chance.choice((1, 2, 4, 16, 256))]
            case 3:
                data[place:place] = data[place : place + chance.choice((1, 4, 32, 256))]
            case 4:
                width = chance.choice((1, 2, 4, 8))
                number = chance.choice(_NUMBERS) & ((1 << 8 * width) - 1)
                data[place : place + width] = number.to_bytes(width, chance.choice(("little", "big")))
            case 5:
                del data[place:]
            case 6:
                data[place:place] = chance.randbytes(chance.choice((1, 3, 20)))
            case _:
                other = chance.randrange(len(data))
                data[place : place + 8] = data[other : other + 8]
    return bytes(data[:LARGEST])


def bend_tree(tree: Any, chance: random.Random) -> Any:
    """Returns a copy of plain data in which a few values, keys or items are not what they should be."""
    if chance.random() < 0.06:
        return chance.choice(_ODD)
    if isinstance(tree, dict):
        items = [(key, bend_tree(value, chance)) for key, value in tree.items() if chance.random() > 0.03]
        if items and chance.random() < 0.04:
            key, value = chance.choice(items)
            items.append((chance.choice((key, str(key) + "x", "", 0, "id")), value))
        if chance.random() < 0.02:
            chance.shuffle(items)
        return dict(items)
    if isinstance(tree, list | tuple):
        rows = [bend_tree(value, chance) for value in tree if chance.random() > 0.02]
        if rows and chance.random() < 0.05:
            rows.append(chance.choice(rows))
        return type(tree)(rows)
    return tree


def nest(chance: random.Random, opening: str, closing: str) -> bytes:
    """Nests a bracket pair deeper than a recursion can go."""
    depth = chance.choice((50, 500, 2000))
    return (opening * depth + closing * chance.choice((0, depth))).encode()[:LARGEST]


def json_inputs(trees: Sequence[Any]) -> Generator:
    """Bent JSON of the trees: as data, as text, and too deep."""

    def generate(chance: random.Random) -> bytes:
        if chance.random() < 0.01:
            return nest(chance, "[", "]")
        text = json.dumps(bend_tree(chance.choice(trees), chance), ensure_ascii=chance.random() < 0.5)
        data = text.encode("utf-8", "surrogatepass")
        return bend_bytes(data, chance) if chance.random() < 0.3 else data[:LARGEST]

    return generate


_YAML_PIECES = (
    "&a ", "*a", "<<: *a", "!!python/object/apply:os.system [x]", "!!python/tuple ", "!!binary |\n",
    "- ", "? ", ": ", "|\n", ">\n", "{", "}", "[", "]", "'", '"',
    "#", "%YAML 9", "---\n", "...\n", "\t", "!!int ", "!!float nan", "~", "0x", "0b1", "1_000", "08", "1:30", "(1, 2)", "[[", "1e5", "=",
)  # fmt: skip


def yaml_inputs(texts: Sequence[str]) -> Generator:
    """Bent YAML: trees dumped anew, and text with YAML's own pieces thrown in."""
    trees = [yaml.safe_load(text) for text in texts]

    def generate(chance: random.Random) -> bytes:
        kind = chance.random()
        if kind < 0.01:
            return nest(chance, chance.choice("[{"), "]")
        if kind < 0.3:
            tree = bend_tree(chance.choice(trees), chance)
            return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")[:LARGEST]
        text = chance.choice(texts)
        for _ in range(chance.choice((1, 2, 6))):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice(_YAML_PIECES) + text[place + chance.choice((0, 0, 1, 5)) :]
        return bend_bytes(text.encode(), chance) if kind > 0.8 else text.encode()[:LARGEST]

    return generate


_OPCODES = [code for code in pickletools.opcodes if code.name != "STOP"]
_NAMES = (b"os\nsystem\n", b"builtins\neval\n", b"numpy\nndarray\n", b"numpy\ndtype\n", b"numpy.core.multiarray\n_reconstruct\n",
          b"numpy.core.multiarray\nscalar\n", b"collections\nOrderedDict\n", b"_codecs\nencode\n", b"x\ny\n")  # fmt: skip


def _argument(code: pickletools.OpcodeInfo, chance: random.Random) -> bytes:
    if code.arg is None:
        return b""
    if code.name in ("GLOBAL", "INST"):
        return chance.choice(_NAMES)
    length = code.arg.n
    if length >= 0:
        return (
            chance.randbytes(length)
            if chance.random() < 0.5
            else struct.pack("<Q", chance.choice((0, 1, 2, 3)))[:length]
        )
    if length == pickletools.UP_TO_NEWLINE:
        return chance.choice(
            (b"1\n", b"-5\n", b"'x'\n", b"1L\n", b"nan\n", b"\\u0041\n", b"", b"00\n", b"9" * 50 + b"\n")
        )
    width = {pickletools.TAKEN_FROM_ARGUMENT1: 1, pickletools.TAKEN_FROM_ARGUMENT8U: 8}.get(length, 4)
    claimed = chance.choice((0, 1, 3, 200, 2**31 - 1, 2**32 - 1)) & ((1 << 8 * width) - 1)
    return claimed.to_bytes(width, "little") + chance.randbytes(min(claimed, 8))


def pickle_inputs(values: Sequence[Any], extra: Sequence[bytes] = ()) -> Generator:
    """Bent pickles: of bent values in every protocol, bent bytes, and soups of opcodes."""
    seeds = [*extra, *(pickle.dumps(value, protocol) for value in values for protocol in range(6))]
    seeds = [seed for seed in seeds if len(seed) <= LARGEST]

    def generate(chance: random.Random) -> bytes:
        kind = chance.random()
        if kind < 0.35:
            return pickle.dumps(bend_tree(chance.choice(values), chance), chance.randrange(6))[:LARGEST]
        if kind < 0.7:
            return bend_bytes(chance.choice(seeds), chance)
        parts = [b"\x80\x02"] if kind < 0.9 else []
        for _ in range(chance.randrange(1, 40)):
            code = chance.choice(_OPCODES)
            parts.append(code.code.encode("latin-1") + _argument(code, chance))
        return (b"".join(parts) + b".")[:LARGEST]

    return generate


def _varint(number: int) -> bytes:
    parts = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        parts.append(low | (0x80 if number else 0))
        if not number:
            return bytes(parts)


def _message(chance: random.Random, depth: int) -> bytes:
    parts = []
    for _ in range(chance.randrange(6)):
        wire = chance.choice((0, 1, 2, 2, 2, 5, 3, 4, 6))
        parts.append(_varint(chance.randrange(1, 24) << 3 | wire))
        if wire == 0:
            parts.append(_varint(chance.choice(_NUMBERS)))
        elif wire == 2:
            body = (
                _message(chance, depth - 1)
                if depth and chance.random() < 0.6
                else chance.randbytes(chance.randrange(9))
            )
            parts.append(_varint(chance.choice((len(body), len(body), len(body), 2**31, 2**63))) + body)
        else:
            parts.append(chance.randbytes({1: 8, 5: 4}.get(wire, 0)))
    return b"".join(parts)


def protobuf_inputs(seeds: Sequence[bytes]) -> Generator:
    """Bent protobuf messages, and soups of fields."""

    def generate(chance: random.Random) -> bytes:
        return bend_bytes(chance.choice(seeds), chance) if chance.random() < 0.75 else _message(chance, 6)[:LARGEST]

    return generate


def text_inputs(texts: Sequence[str], pieces: Sequence[str]) -> Generator:
    """Bent text with a format's own pieces thrown in."""

    def generate(chance: random.Random) -> bytes:
        text = chance.choice(texts)
        for _ in range(chance.choice((1, 1, 2, 6))):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + chance.choice(pieces) + text[place + chance.choice((0, 0, 1, 8)) :]
        data = text.encode("utf-8", "surrogatepass")
        return bend_bytes(data, chance) if chance.random() < 0.4 else data[:LARGEST]

    return generate


def byte_inputs(seeds: Sequence[bytes]) -> Generator:
    """Bent bytes of the seeds."""
    return lambda chance: bend_bytes(chance.choice(seeds), chance)


def sealed_inputs(inner: Generator) -> Generator:
    """Inputs that end with the SHA-256 of what is before, so that a reader gets past its checksum; some do not."""

    def generate(chance: random.Random) -> bytes:
        data = inner(chance)
        body = data[: LARGEST - 32] if len(data) < 32 else data[:-32]
        return data if chance.random() < 0.2 else body + hashlib.sha256(body).digest()

    return generate


def headed_inputs(seed: bytes, before: int) -> Generator:
    """Bends a file of a magic, the length of a JSON header as 8 bytes at `before`, the header, and a body."""
    length = int.from_bytes(seed[before : before + 8], "little")
    start = before + 8
    tree, body = json.loads(seed[start : start + length]), seed[start + length :]

    def generate(chance: random.Random) -> bytes:
        if chance.random() < 0.3:
            return bend_bytes(seed, chance)
        text = json.dumps(bend_tree(tree, chance)).encode()
        return (seed[:before] + len(text).to_bytes(8, "little") + text + body)[:LARGEST]

    return generate
