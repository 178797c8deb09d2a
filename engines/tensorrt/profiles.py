"""Optimization profiles: the ranges of input shapes that an engine is built for, few of them, planned from the shapes that will come.

Pictures of one orientation and of similar area share a profile. A profile covers all shapes between its smallest and its largest, so no
picture is padded for its sake; how much of the network's input is padding anyway, to the model's multiple, is told.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from roiline.core.errors import UsageError
from roiline.core.spec import GivenProposals, ImageRules

Shape: TypeAlias = tuple[int, ...]

MOST_BUCKETS = 4
AREA_SPREAD = 2.0
"""Pictures of one profile differ in area by this factor at most, as long as there are profiles left to make."""

_GIVEN_LIMIT = 2000
_SIZE = re.compile(r"([0-9]{1,5})x([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Bucket:
    """Is a range of picture shapes (height, width) of the network's input: smallest, most frequent, largest; and how many pictures."""

    smallest: tuple[int, int]
    usual: tuple[int, int]
    largest: tuple[int, int]
    pictures: int = 0


@dataclass(frozen=True, slots=True)
class Profile:
    """Is one optimization profile: for each input its smallest, optimal and largest shape."""

    shapes: Mapping[str, tuple[Shape, Shape, Shape]]


def plan_buckets(shapes: Sequence[tuple[int, int]], most: int = MOST_BUCKETS) -> tuple[Bucket, ...]:
    """Returns at most `most` buckets that cover all shapes (height, width), the one with most pictures first.

    Raises:
        UsageError: there are no shapes.
    """
    if not shapes:
        raise UsageError("no picture has a size that can be read, so no shapes can be planned; give them with --shapes")
    counts = Counter(shapes)
    groups = [group for group in _by_orientation(counts) if group]
    while len(groups) < most:
        widest = max(groups, key=_spread)
        if _spread(widest) <= AREA_SPREAD:
            break
        groups.remove(widest)
        groups += _split(widest)
    buckets = (_bucket(group, counts) for group in groups)
    return tuple(sorted(buckets, key=lambda bucket: (-bucket.pictures, bucket.usual)))


def _by_orientation(shapes: Iterable[tuple[int, int]]) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    ordered = sorted(shapes, key=lambda hw: (hw[0] * hw[1], hw))
    return [hw for hw in ordered if hw[1] >= hw[0]], [hw for hw in ordered if hw[1] < hw[0]]


def _spread(group: Sequence[tuple[int, int]]) -> float:
    areas = [height * width for height, width in group]
    return max(areas) / min(areas)


def _split(group: Sequence[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Splits shapes in ascending order of area where neighbours differ most."""
    areas = [height * width for height, width in group]
    ratios = [later / earlier for earlier, later in pairwise(areas)]
    cut = ratios.index(max(ratios)) + 1
    return [list(group[:cut]), list(group[cut:])]


def _bucket(group: Sequence[tuple[int, int]], counts: Mapping[tuple[int, int], int]) -> Bucket:
    heights, widths = zip(*group, strict=True)
    usual = max(group, key=lambda hw: (counts[hw], hw))
    return Bucket(
        (min(heights), min(widths)), usual, (max(heights), max(widths)), sum(counts[shape] for shape in group)
    )


def buckets_from_rules(rules: ImageRules) -> tuple[Bucket, ...]:
    """Returns buckets for a dataset that is not known: all that the model's rules can make of pictures, both orientations."""
    multiple = max(1, rules.pad_multiple)

    def padded(size: int) -> int:
        return -(-size // multiple) * multiple

    if rules.resize in ("detectron_stretch", "torchvision_stretch"):
        only = padded(rules.max_size), padded(rules.scale)
        return (Bucket(only, only, only),)
    short, long = padded(rules.scale), padded(rules.max_size)
    least = padded(min(32, short))
    usual = min(padded(rules.scale * 4 // 3), long)
    wide = Bucket((least, least), (short, usual), (short, long))
    return wide, Bucket((least, least), (usual, short), (long, short))


def buckets_from_text(text: str) -> tuple[Bucket, ...]:
    """Reads `--shapes`: `HxW` or a range `HxW-HxW`, several with commas.

    Raises:
        UsageError: the text is none of that.
    """
    return tuple(_read_bucket(part.strip(), text) for part in text.split(","))


def _read_bucket(part: str, text: str) -> Bucket:
    found = [_SIZE.fullmatch(size) for size in part.split("-")]
    sizes = [(int(match[1]), int(match[2])) for match in found if match]
    ascending = sizes and all(0 < low <= high for low, high in zip(sizes[0], sizes[-1], strict=True))
    if len(sizes) != len(found) or len(sizes) > 2 or not ascending:
        raise UsageError(
            f"--shapes {text}: expected HEIGHTxWIDTH of the network's input or a range SMALLEST-LARGEST, several with commas "
            f"(800x1344,800x800-1344x1344), got {part!r}"
        )
    return Bucket(sizes[0], sizes[-1], sizes[-1])


def make_profiles(
    buckets: Sequence[Bucket],
    batch_sizes: Sequence[int],
    inputs: Mapping[str, Sequence[int | None]],
    given: GivenProposals | None,
) -> tuple[Profile, ...]:
    """Returns the profiles of buckets and batch sizes.

    The smallest batch size's profiles take batches from one picture on, those of each further one the sizes above the one before. `inputs`
    are the model's, by name, with None for free dimensions; `given` is the rule of RoIs that are fed, where they are.

    Raises:
        UsageError: a batch size or a shape does not fit the model.
    """
    if not batch_sizes or min(batch_sizes) < 1:
        raise UsageError(f"--batch-sizes: expected positive numbers, got {', '.join(map(str, batch_sizes)) or 'none'}")
    if given is not None and max(batch_sizes) > 1:
        raise UsageError(
            "--batch-sizes: a model that is fed its RoIs is built for one picture at a time; leave the option out"
        )
    limits = sorted(set(batch_sizes))
    ranges = [(1, limits[0]), *((low + 1, high) for low, high in pairwise(limits))]
    return tuple(
        Profile({name: _input_range(name, shape, bucket, span, given) for name, shape in inputs.items()})
        for bucket in buckets
        for span in ranges
    )


def _input_range(
    name: str, declared: Sequence[int | None], bucket: Bucket, span: tuple[int, int], given: GivenProposals | None
) -> tuple[Shape, Shape, Shape]:
    rois = given.limit if given is not None and given.limit > 0 else _GIVEN_LIMIT
    rows = (1, rois, rois) if name in ("rois", "roi_index") else (span[0], span[1], span[1])
    sides = (bucket.smallest, bucket.usual, bucket.largest)
    shapes = [
        (first, 3, *hw) if name == "data" else (first, *declared[1:]) for first, hw in zip(rows, sides, strict=True)
    ]
    for shape in shapes:
        _check_shape(name, shape, declared)
    low, usual, high = (tuple(size for size in shape if size is not None) for shape in shapes)
    return low, usual, high


def _check_shape(name: str, shape: Sequence[int | None], declared: Sequence[int | None]) -> None:
    if len(shape) != len(declared) or any(
        size is None or (want is not None and want != size) for size, want in zip(shape, declared, strict=True)
    ):
        expected = tuple("?" if size is None else size for size in declared)
        raise UsageError(f"the model's input `{name}` has the shape {expected}; it cannot be built for {tuple(shape)}")


def describe_buckets(buckets: Sequence[Bucket], sizes: Sequence[tuple[int, int, int, int]] = ()) -> list[str]:
    """Returns lines for people: each bucket, and what share of the network's input is padding.

    `sizes` are (height, width, padded height, padded width) of each picture as it is resized.
    """
    lines = []
    for bucket in buckets:
        count = f": {bucket.pictures} pictures" if bucket.pictures else ""
        low, usual, high = (f"{height}x{width}" for height, width in (bucket.smallest, bucket.usual, bucket.largest))
        lines.append(f"shapes {low} to {high}, tuned for {usual}{count}")
    if sizes:
        real = sum(height * width for height, width, _, _ in sizes)
        padded = sum(height * width for _, _, height, width in sizes)
        lines.append(f"padding: {100 * (1 - real / padded):.1f} % of the network's input")
    return lines
