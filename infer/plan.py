"""The plan: which images make up which shard, from their sizes alone.

A shard is the unit of durability and of repair. The plan knows nothing of workers, devices or batch sizes, so that a run can go on with
others; images of equal padded shape are put together, so that full batches form whatever the batch size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, int]

SMALLEST_SHARD = 4
LARGEST_SHARD = 64
SHARDS_WANTED = 64


@dataclass(frozen=True, slots=True)
class Shard:
    """Is a numbered list of image positions (indices into the run's images, which ascend by image id)."""

    index: int
    positions: tuple[int, ...]


def shard_size(images: int) -> int:
    """Returns how many images a shard holds: a power of two from 4 to 64, so that a run has about 64 shards or more."""
    size = SMALLEST_SHARD
    while size < LARGEST_SHARD and size * SHARDS_WANTED < images:
        size *= 2
    return size


def plan_shards(shapes: Sequence[Shape]) -> tuple[Shard, ...]:
    """Returns shards that cover every position once.

    `shapes` are the padded network shapes by position. Whole shards of one shape come first, large shapes before small ones (they take
    longest, and the run ends evenly); what is left over of each shape is joined to mixed shards, neighbours by shape.
    """
    size = shard_size(len(shapes))
    by_shape: dict[Shape, list[int]] = defaultdict(list)
    for position, shape in enumerate(shapes):
        by_shape[shape].append(position)
    whole: list[tuple[int, ...]] = []
    rest: list[int] = []
    for shape in sorted(by_shape, key=lambda hw: (-hw[0] * hw[1], hw)):
        positions = by_shape[shape]
        cut = len(positions) - len(positions) % size
        whole += [tuple(positions[start : start + size]) for start in range(0, cut, size)]
        rest += positions[cut:]
    mixed = [tuple(rest[start : start + size]) for start in range(0, len(rest), size)]
    return tuple(Shard(index, positions) for index, positions in enumerate(whole + mixed))
