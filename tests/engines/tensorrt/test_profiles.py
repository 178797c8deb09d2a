"""Shapes into few profiles, and what is said of them."""

from __future__ import annotations

import pytest

from roiline.core.errors import UsageError
from roiline.core.spec import GivenProposals, ImageRules
from roiline.engines.tensorrt.profiles import (
    Bucket,
    buckets_from_rules,
    buckets_from_text,
    describe_buckets,
    make_profiles,
    plan_buckets,
)

RULES = ImageRules("BGR", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 800, 1333, "detectron", 32, "ignore")
INPUTS = {"data": (None, 3, None, None), "im_info": (None, 3), "im_size": (None, 2)}


def test_orientations_have_profiles_of_their_own():
    shapes = [(800, 1088)] * 5 + [(800, 1216)] * 3 + [(1088, 800)] * 2
    wide, tall = plan_buckets(shapes)
    assert wide == Bucket((800, 1088), (800, 1088), (800, 1216), 8)
    assert tall == Bucket((1088, 800), (1088, 800), (1088, 800), 2)


def test_areas_that_differ_much_are_split_as_long_as_there_are_buckets():
    shapes = [(100, 100), (110, 110), (400, 400), (800, 800)]
    assert [bucket.pictures for bucket in plan_buckets(shapes)] == [2, 1, 1]
    assert [bucket.pictures for bucket in plan_buckets(shapes, most=2)] == [2, 2]
    (everything,) = plan_buckets(shapes, most=1)
    assert (everything.smallest, everything.largest) == ((100, 100), (800, 800))


@pytest.mark.parametrize("most", [1, 2, 4])
def test_all_shapes_are_covered(most):
    shapes = [(32 * (1 + index * 7 % 40), 32 * (1 + index * 11 % 40)) for index in range(60)]
    buckets = plan_buckets(shapes, most)
    assert len(buckets) <= max(most, 2)
    assert sum(bucket.pictures for bucket in buckets) == 60
    for height, width in shapes:
        assert any(
            low <= size <= high
            for bucket in buckets
            for low, size, high in [(bucket.smallest, (height, width), bucket.largest)]
            if low[0] <= height <= high[0] and low[1] <= width <= high[1]
        )


def test_no_shapes_are_no_plan():
    with pytest.raises(UsageError, match="give them with --shapes"):
        plan_buckets([])


def test_a_models_rules_give_both_orientations():
    wide, tall = buckets_from_rules(RULES)
    assert (wide.smallest, wide.largest) == ((32, 32), (800, 1344))
    assert (tall.usual, tall.largest) == ((1088, 800), (1344, 800))


def test_shapes_are_read_from_text():
    assert buckets_from_text("800x1344, 800x800-1344x1344") == (
        Bucket((800, 1344), (800, 1344), (800, 1344)),
        Bucket((800, 800), (1344, 1344), (1344, 1344)),
    )


@pytest.mark.parametrize("text", ["800", "800x", "0x5", "8x8-4x9", "1x1-2x2-3x3", "", "800x1333,"])
def test_other_text_is_refused(text):
    with pytest.raises(UsageError, match="expected HEIGHTxWIDTH"):
        buckets_from_text(text)


def test_batch_sizes_are_ranges_that_leave_no_gap():
    bucket = Bucket((64, 64), (64, 96), (96, 96))
    first, second = make_profiles([bucket], [8, 1], INPUTS, None)
    assert first.shapes["data"] == ((1, 3, 64, 64), (1, 3, 64, 96), (1, 3, 96, 96))
    assert second.shapes["data"] == ((2, 3, 64, 64), (8, 3, 64, 96), (8, 3, 96, 96))
    assert second.shapes["im_size"] == ((2, 2), (8, 2), (8, 2))


def test_given_rois_have_ranges_of_their_own():
    inputs = {**INPUTS, "rois": (None, 5), "roi_index": (None,)}
    bucket = Bucket((64, 64), (64, 64), (64, 64))
    (profile,) = make_profiles([bucket], [1], inputs, GivenProposals(300, 0.0))
    assert profile.shapes["rois"] == ((1, 5), (300, 5), (300, 5))
    assert profile.shapes["roi_index"] == ((1,), (300,), (300,))
    with pytest.raises(UsageError, match="one picture at a time"):
        make_profiles([bucket], [2], inputs, GivenProposals(300, 0.0))


@pytest.mark.parametrize("sizes", [(), (0,), (2, -1)])
def test_batch_sizes_are_positive(sizes):
    with pytest.raises(UsageError, match="--batch-sizes"):
        make_profiles([Bucket((64, 64), (64, 64), (64, 64))], sizes, INPUTS, None)


def test_a_model_of_one_shape_is_built_for_that_only():
    with pytest.raises(UsageError, match="cannot be built for"):
        make_profiles([Bucket((64, 64), (64, 64), (64, 64))], [1], {"data": (1, 3, 32, 32)}, None)


def test_padding_is_told():
    lines = describe_buckets([Bucket((64, 64), (64, 64), (64, 96), 2)], [(60, 60, 64, 64), (64, 80, 64, 96)])
    assert lines == ["shapes 64x64 to 64x96, tuned for 64x64: 2 pictures", "padding: 14.8 % of the network's input"]
