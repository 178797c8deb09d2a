"""Models that answer together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_support import make_spec

from roiline.core.errors import UsageError
from roiline.core.spec import GivenProposals
from roiline.core.structures import Detections, Proposals
from roiline.infer.combination import CombinedPredictor, combine_detections, match_model_classes
from roiline.infer.feeds import batch_from_picture
from roiline.infer.predictor import Predictor

PICTURE = np.random.default_rng(1).integers(0, 256, (40, 60, 3), np.uint8)


def found(classes, image_id=0, **parts):
    count = len(classes)
    boxes = np.arange(4 * count, dtype=np.float32).reshape(count, 4)
    scores = np.linspace(0.9, 0.5, count, dtype=np.float32)
    return Detections(image_id, boxes, scores, np.array(classes, np.int64), **parts)


class Scripted(Predictor):
    """Notes the batches that it is given, and gives prepared answers."""

    def __init__(self, spec, answer):
        self.spec, self.answer = spec, answer
        self.needs_pictures, self.needs_proposals = False, spec.given_proposals is not None
        self.batches, self.closed = [], False

    @property
    def description(self):
        return {"engine": "scripted"}

    def infer(self, batch):
        self.batches.append(batch)
        return len(batch.ids)

    def finish(self, outputs, batch):
        return [replace(self.answer, image_id=image_id) for image_id in batch.ids]

    def close(self):
        self.closed = True


def fast_spec(**changes):
    return make_spec(given_proposals=GivenProposals(100, 0.0), **changes)


def test_the_last_model_gives_the_boxes_and_each_part_comes_from_the_last_that_has_it():
    masks = found([1, 2, 2], masks=(b"a", b"b", b"c"))
    keypoints = found([1], keypoints=np.ones((1, 4, 17), np.float32))
    combined = combine_detections([masks, keypoints])
    assert len(combined.scores) == 1
    assert combined.masks == (b"a", b"b", b"c")
    assert combined.mask_rows is masks
    assert combined.keypoints is keypoints.keypoints
    assert combined.keypoint_rows is None


def test_a_model_that_found_nothing_overwrites_boxes_alone():
    masks = found([1], masks=(b"a",))
    combined = combine_detections([masks, found([], masks=())])
    assert (len(combined.scores), combined.masks) == (0, (b"a",))


def test_models_that_have_all_parts_leave_the_last_as_it_is():
    last = found([2], masks=(b"z",), keypoints=np.zeros((1, 4, 17), np.float32))
    assert combine_detections([found([1], masks=(b"a",)), last]) is last


def test_classes_are_matched_by_name():
    first, other = make_spec(), make_spec(class_names=("fox", "cat"))
    assert match_model_classes(first, other).tolist() == [0, 3, 1]
    with pytest.raises(UsageError, match=r"no class wolf\n  first: cat, dog, fox\n  other: wolf"):
        match_model_classes(first, make_spec(class_names=("wolf",)))


def test_classes_without_names_are_matched_by_number():
    first, other = make_spec(), make_spec(class_names=("class_1", "class_2"), class_names_known=False)
    assert match_model_classes(first, other).tolist() == [0, 1, 2]
    with pytest.raises(UsageError, match="first has 2 classes, another has 3"):
        match_model_classes(other, first)


def test_answers_have_the_first_models_classes_class_by_class():
    other = Scripted(make_spec(class_names=("fox", "cat")), found([1, 1, 2], masks=(b"a", b"b", b"c")))
    combined = CombinedPredictor([Scripted(make_spec(), found([1])), other])
    (answer,) = combined.run(batch_from_picture(PICTURE, combined.spec.images, 7))
    assert answer.image_id == 7
    assert answer.classes.tolist() == [1, 3, 3]
    assert answer.masks == (b"c", b"a", b"b")
    np.testing.assert_array_equal(answer.boxes[0], found([1, 1, 2]).boxes[2])


def test_each_model_gets_pictures_as_it_wants_them():
    larger = replace(make_spec().images, scale=48, max_size=96)
    members = [Scripted(make_spec(), found([1])), Scripted(make_spec(images=larger), found([2]))]
    combined = CombinedPredictor(members)
    assert combined.needs_pictures
    batch = batch_from_picture(PICTURE, combined.spec.images, 7)
    combined.run(batch)
    assert members[0].batches[0].pixels is batch.pixels
    assert members[1].batches[0].pixels.shape == (1, 3, 48, 80)
    assert members[1].batches[0].im_info[0, 2] == pytest.approx(48 / 40)


def test_a_model_makes_the_proposals_of_the_others():
    boxes = np.array([[-3, 0, 70, 44]], np.float32)  # beyond the picture: they are used as they are
    larger = replace(make_spec().images, scale=48, max_size=96)
    proposer = Scripted(make_spec(images=larger), Proposals(0, boxes, np.ones(1, np.float32)))
    detector = Scripted(fast_spec(), found([1]))
    combined = CombinedPredictor([detector], proposer)
    assert not combined.needs_proposals
    (answer,) = combined.run(batch_from_picture(PICTURE, combined.spec.images, 7))
    assert proposer.batches[0].pixels.shape == (1, 3, 48, 80)
    np.testing.assert_array_equal(detector.batches[0].proposals[0], boxes)
    assert len(answer.scores) == 1


def test_proposals_of_a_file_go_to_every_model():
    members = [Scripted(fast_spec(), found([1])), Scripted(fast_spec(), found([1]))]
    combined = CombinedPredictor(members)
    assert combined.needs_proposals
    given = np.zeros((3, 4), np.float32)
    combined.run(batch_from_picture(PICTURE, combined.spec.images, 7, [given]))
    assert all(member.batches[0].proposals[0] is given for member in members)


def test_proposals_that_nobody_takes_are_refused():
    proposer = Scripted(make_spec(), Proposals(0, np.zeros((0, 4), np.float32), np.zeros(0, np.float32)))
    with pytest.raises(UsageError, match="no model takes any"):
        CombinedPredictor([Scripted(make_spec(), found([1]))], proposer)


def test_closing_closes_all():
    members = [Scripted(fast_spec(), found([1])), Scripted(make_spec(), found([1]))]
    proposer = Scripted(make_spec(), found([]))
    combined = CombinedPredictor(members, proposer)
    assert combined.description == {"engine": "scripted", "models": "3"}
    combined.close()
    assert all(one.closed for one in (*members, proposer))
