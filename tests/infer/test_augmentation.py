"""Passes of test-time augmentation: which there are, what they do to pictures and boxes, and how answers are joined."""

from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_case

from roiline.core.errors import ModelError
from roiline.core.spec import Augmentation, BoxAugmentation, ImageRules, KeypointAugmentation, MaskAugmentation
from roiline.infer.augmentation import Pass, identity_pass, join_boxes, join_keypoints, join_masks, list_passes
from roiline.infer.detection_rules import ScoredBoxes

RULES = ImageRules("BGR", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 800, 1333, "detectron", 32, "apply")
PASSES = Augmentation(True, (400, 1200), 2000, True, (0.5, 2.0), False)
UNION = BoxAugmentation(PASSES, "UNION", "UNION")


def test_passes_come_in_the_originals_order():
    assert list_passes(PASSES, RULES) == (
        Pass(800, 1333, flip=True),
        Pass(400, 2000),
        Pass(400, 2000, flip=True),
        Pass(1200, 2000),
        Pass(1200, 2000, flip=True),
        Pass(800, 1333, 0.5),
        Pass(800, 1333, 2.0),
    )
    assert list_passes(Augmentation(False, (), 4000, True, (), True), RULES) == ()


def test_a_pass_sets_the_sizes_alone():
    changed = Pass(400, 2000).image_rules(RULES)
    assert (changed.scale, changed.max_size, changed.means) == (400, 2000, RULES.means)


def test_mirrored_boxes_are_the_originals():
    case = golden_case("detectron_py", "flip_boxes_000")
    moved = Pass(1, 1, flip=True).alter_boxes(_by_box(case.inputs[0]), case.args["im_width"], plus_one=1.0)
    np.testing.assert_array_equal(moved.reshape(case.outputs[0].shape), case.outputs[0])


def test_stretched_boxes_are_the_originals():
    case = golden_case("detectron_py", "aspect_ratio_000")
    moved = Pass(1, 1, case.args["aspect_ratio"]).alter_boxes(_by_box(case.inputs[0]), 200, plus_one=1.0)
    np.testing.assert_array_equal(moved.reshape(case.outputs[0].shape), case.outputs[0])


def _by_box(boxes):
    return boxes.reshape(len(boxes), -1, 4).astype(np.float32)


@pytest.mark.parametrize("one", [Pass(9, 9, flip=True), Pass(9, 9, 1.5), Pass(9, 9, 0.7, flip=True)])
@pytest.mark.parametrize("plus_one", [0.0, 1.0])
def test_boxes_come_back(one, plus_one):
    boxes = np.random.default_rng(0).random((5, 3, 4)).astype(np.float32) * 50
    altered = one.alter_boxes(boxes, 61, plus_one=plus_one)
    assert np.abs(altered - boxes).max() > 1
    np.testing.assert_allclose(one.restore_boxes(altered, 61, plus_one=plus_one), boxes, atol=1e-4)


def test_a_mark_in_the_picture_stays_in_its_box():
    picture = np.zeros((40, 61, 3), np.uint8)
    picture[10:20, 5:15] = 255
    box = np.array([[5, 10, 14, 19]], np.float32)
    one = Pass(1, 1, 2.0, flip=True)
    altered = one.alter_picture(picture)
    assert altered.shape == (40, 122, 3)
    x1, y1, x2, y2 = one.alter_boxes(box, 61, plus_one=1.0)[0].round().astype(int)
    assert (altered[y1 : y2 + 1, x1 + 2 : x2 - 1] == 255).all()
    columns = np.flatnonzero(altered[12, :, 0] > 127)
    assert abs(columns[0] - x1) <= 2
    assert abs(columns[-1] - x2) <= 2


def test_plain_picture_is_not_copied():
    picture = np.zeros((4, 5, 3), np.uint8)
    assert Pass(400, 2000).alter_picture(picture) is picture


def _scored(seed, rows=4):
    rng = np.random.default_rng(seed)
    return ScoredBoxes(rng.random((rows, 3), np.float32), rng.random((rows, 3, 4), np.float32))


def test_union_stacks_all_rows_and_the_picture_itself_comes_last():
    joined = join_boxes([_scored(0), _scored(1, 2)], _scored(2), UNION)
    assert joined.scores.shape == (10, 3)
    np.testing.assert_array_equal(joined.boxes[-4:], _scored(2).boxes)


def test_mean_and_own_may_be_mixed():
    passes = [_scored(0), _scored(1)]
    joined = join_boxes(passes, _scored(2), BoxAugmentation(PASSES, "ID", "AVG"))
    np.testing.assert_array_equal(joined.scores, _scored(2).scores)
    np.testing.assert_allclose(joined.boxes, sum(_scored(seed).boxes for seed in range(3)) / 3, rtol=1e-6)
    assert joined.boxes.dtype == np.float32


def test_a_mean_of_different_proposals_is_refused():
    with pytest.raises(ModelError, match="makes its own in every pass"):
        join_boxes([_scored(0, 3)], _scored(1, 4), BoxAugmentation(PASSES, "AVG", "AVG"))


_JOINS = ("SOFT_AVG", "SOFT_MAX", "LOGIT_AVG")


def test_masks_are_joined_by_mean_maximum_or_logits():
    first = np.full((1, 2, 2), 0.9, np.float32)
    second = np.full((1, 2, 2), 0.2, np.float32)
    joined = {how: join_masks([first, second], MaskAugmentation(PASSES, how))[0, 0, 0] for how in _JOINS}
    assert joined["SOFT_AVG"] == pytest.approx(0.55)
    assert joined["SOFT_MAX"] == pytest.approx(0.9)
    assert joined["LOGIT_AVG"] == pytest.approx(1 / (1 + np.sqrt(0.1 / 0.9 * 0.8 / 0.2)), rel=1e-6)


def test_certain_masks_have_logits_without_warning():
    sure, never = np.ones((1, 1, 1), np.float32), np.zeros((1, 1, 1), np.float32)
    assert join_masks([sure, sure], MaskAugmentation(PASSES, "LOGIT_AVG"))[0, 0, 0] == 1
    assert join_masks([never, never], MaskAugmentation(PASSES, "LOGIT_AVG"))[0, 0, 0] == pytest.approx(0, abs=1e-6)


def test_mirrored_masks_and_keypoints_are_turned_back():
    one = Pass(1, 1, flip=True)
    masks = np.arange(8, dtype=np.float32).reshape(1, 2, 4)
    np.testing.assert_array_equal(one.restore_masks(masks)[0], masks[0, :, ::-1])
    maps = np.zeros((1, 17, 2, 4), np.float32)
    maps[0, 1, 0, 3] = 1  # the left eye, seen at the right edge of the mirrored picture
    turned = one.restore_keypoints(maps)
    assert np.argwhere(turned).tolist() == [[0, 2, 0, 0]]
    np.testing.assert_array_equal(one.restore_keypoints(turned), maps)


def test_keypoints_other_than_cocos_cannot_be_mirrored():
    with pytest.raises(ModelError, match="17 keypoints"):
        Pass(1, 1, flip=True).restore_keypoints(np.zeros((1, 5, 2, 2), np.float32))


@pytest.mark.parametrize(("how", "expected"), [("HM_AVG", 2.0), ("HM_MAX", 3.0)])
def test_keypoint_maps_are_joined(how, expected):
    maps = [np.full((1, 2, 2, 2), value, np.float32) for value in (1, 2, 3)]
    passes = (identity_pass(RULES), Pass(400, 2000), Pass(1200, 2000))
    boxes = np.array([[0, 0, 9, 9]], np.float32)
    joined = join_keypoints(maps, passes, boxes, KeypointAugmentation(PASSES, how, False, 0), plus_one=1.0)
    np.testing.assert_array_equal(joined, np.full((1, 2, 2, 2), expected))


def test_small_boxes_leave_out_smaller_scales_and_large_ones_larger_scales():
    maps = [np.full((2, 1, 1, 1), value, np.float32) for value in (0, 10, 30)]
    passes = (identity_pass(RULES), Pass(400, 2000), Pass(1200, 2000))
    boxes = np.array([[0, 0, 8, 9], [0, 0, 9, 9]], np.float32)  # 90 and 100 square pixels
    joined = join_keypoints(maps, passes, boxes, KeypointAugmentation(PASSES, "HM_AVG", True, 100), plus_one=1.0)
    assert joined.reshape(-1).tolist() == [15, 5]
