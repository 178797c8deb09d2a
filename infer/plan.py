"""The plan: which images make up which shard, from their sizes alone.

A shard is the unit of durability and of repair. The plan knows nothing of workers, devices or batch sizes, so that a run can go on with
others; images of equal padded shape are put together, so that full batches form whatever the batch size. The last shards are smaller than
the first, so that the workers end together; how many of them a worker gets is the scheduler's, by its measured rate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Shape: TypeAlias = tuple[int, int]

SMALLEST_SHARD = 4
LARGEST_SHARD = 64
SHARDS_WANTED = 64
TAIL_SHARE = 4
"""One part in so many of a run is its tail, and its shards are as many times smaller."""
TAIL_SHARDS = 256
"""The most shards of a tail: enough for its purpose, and few beside those of a large run."""


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


def tail_size(images: int) -> int:
    """Returns how many images a shard of the tail holds."""
    return max(SMALLEST_SHARD, shard_size(images) // TAIL_SHARE)


def tail_start(images: int) -> int:
    """Returns how many images come before the tail."""
    return images - min(images // TAIL_SHARE, TAIL_SHARDS * tail_size(images))


def plan_shards(shapes: Sequence[Shape]) -> tuple[Shard, ...]:
    """Returns shards that cover every position once.

    `shapes` are the padded network shapes by position. Whole shards of one shape come first, large shapes before small ones (they take
    longest, and the run ends evenly); what is left over of each shape is joined to mixed shards, neighbours by shape.
    """
    by_shape: dict[Shape, list[int]] = defaultdict(list)
    for position, shape in enumerate(shapes):
        by_shape[shape].append(position)
    whole: list[tuple[int, ...]] = []
    rest: list[int] = []
    sizes = _sizes(len(shapes))
    size = next(sizes)
    for shape in sorted(by_shape, key=lambda hw: (-hw[0] * hw[1], hw)):
        positions = by_shape[shape]
        start = 0
        while len(positions) - start >= size:
            whole.append(tuple(positions[start : start + size]))
            start += size
            size = next(sizes)
        rest += positions[start:]
    mixed: list[tuple[int, ...]] = []
    while rest:
        mixed.append(tuple(rest[:size]))
        rest, size = rest[size:], next(sizes)
    return tuple(Shard(index, positions) for index, positions in enumerate(whole + mixed))


def _sizes(images: int) -> Iterator[int]:
    """Returns the size of one shard after another, without an end."""
    planned, large, small, tail = 0, shard_size(images), tail_size(images), tail_start(images)
    while True:
        size = large if planned + large <= tail else small
        yield size
        planned += size
