from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roiline.infer.plan import TAIL_SHARDS, plan_shards, shard_size, tail_size, tail_start

SHAPE = st.tuples(st.sampled_from([32, 64, 96]), st.sampled_from([32, 64]))


@pytest.mark.parametrize(
    ("images", "size"), [(0, 4), (1, 4), (256, 4), (257, 8), (1024, 16), (4096, 64), (4097, 64), (100000, 64)]
)
def test_shard_sizes_grow_with_the_dataset(images: int, size: int) -> None:
    assert shard_size(images) == size


@given(st.lists(SHAPE, max_size=300))
def test_a_plan_covers_every_image_once(shapes: list[tuple[int, int]]) -> None:
    shards = plan_shards(shapes)
    assert [shard.index for shard in shards] == list(range(len(shards)))
    assert sorted(position for shard in shards for position in shard.positions) == list(range(len(shapes)))
    size, small = shard_size(len(shapes)), tail_size(len(shapes))
    assert all(1 <= len(shard.positions) <= size for shard in shards)
    assert sum(len(shard.positions) not in (size, small) for shard in shards) <= 1


@pytest.mark.parametrize("images", [0, 3, 256, 5000, 100_000])
def test_the_last_shards_are_smaller_and_not_too_many(images: int) -> None:
    sizes = [len(shard.positions) for shard in plan_shards([(32, 32)] * images)]
    assert sizes == sorted(sizes, reverse=True)
    start, small = tail_start(images), tail_size(images)
    assert small <= max(4, shard_size(images) // 4)
    assert sum(size for size in sizes if size > small) <= start
    assert sum(size <= small for size in sizes) * small >= (images - start) or images < 5000
    assert len(sizes) <= images / shard_size(images) + TAIL_SHARDS + 1


@given(st.lists(SHAPE, max_size=300))
def test_all_shards_but_the_left_over_ones_have_one_shape(shapes: list[tuple[int, int]]) -> None:
    size, small = shard_size(len(shapes)), tail_size(len(shapes))
    pure = sum(len({shapes[p] for p in s.positions}) == 1 and len(s.positions) >= small for s in plan_shards(shapes))
    assert pure >= sum(count // size for count in Counter(shapes).values())


def test_equal_shapes_stand_together_in_a_mixed_shard() -> None:
    shards = plan_shards([(32, 32), (64, 32), (32, 32), (64, 32)])
    assert [shard.positions for shard in shards] == [(1, 3, 0, 2)]
