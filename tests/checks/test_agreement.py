"""The gate between a model of lower precision and the fp32 one, on made-up answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_support import make_spec

from roiline.checks.agreement import judge_answers
from roiline.core.errors import DataError, ExportError

NAMES = ("boxes", "scores", "classes", "count")
PICTURES, BOXES = 4, 12


def make_answers(seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Returns detections of a few pictures: boxes apart from each other, two classes in turn, a padding row at the end."""
    random = np.random.default_rng(seed)
    answers = []
    for _ in range(PICTURES):
        corner = np.arange(BOXES + 1, dtype=np.float32)[:, None] * 100 + random.uniform(0, 5, (BOXES + 1, 2))
        boxes = np.concatenate([corner, corner + 50], axis=1).astype(np.float32)
        scores = random.uniform(0.7, 1, BOXES + 1).astype(np.float32)
        scores[-1] = 0
        classes = np.arange(BOXES + 1) % 2 + 1
        answers.append(dict(zip(NAMES, (boxes[None], scores[None], classes[None], np.array([BOXES])), strict=True)))
    return answers


@pytest.fixture
def spec():
    base = make_spec()
    return replace(
        base,
        tasks=("proposals", "detections"),
        class_names=("cell", "dot"),
        seams={"proposals": ("boxes", "scores", "count"), "detections": NAMES},
    )


def change(answers, name, function):
    return [one | {name: function(one[name])} for one in answers]


def test_nearly_the_same_passes_and_says_so(spec):
    moved = change(make_answers(), "boxes", lambda boxes: boxes + np.float32(3))
    verdict = judge_answers(spec, make_answers(), moved)
    assert verdict.notes == (
        "on the calibration pictures 100.0% of the fp32 model's confident detections are found again, "
        "100.0% of its own were there before",
    )
    assert verdict.warnings == ()


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("scores", lambda scores: scores * np.float32(0.1), "0.0% of the fp32 model's"),
        ("classes", np.ones_like, r"lost classes: dot \(0 of 24\)"),
        ("count", np.zeros_like, "0.0% of the fp32 model's"),
        ("boxes", lambda boxes: boxes + np.float32(40), "does not stand"),
        ("boxes", lambda boxes: boxes * np.float32(np.nan), "not finite: boxes"),
    ],
)
def test_what_collapsed_is_refused(spec, name, function, message):
    with pytest.raises(ExportError, match=message):
        judge_answers(spec, make_answers(), change(make_answers(), name, function))


def test_inventions_are_refused(spec):
    few = [one | {"count": np.array([4])} for one in make_answers()]
    with pytest.raises(ExportError, match=r"100.0% .* are found again, 33.3% of its own"):
        judge_answers(spec, few, make_answers())


def test_a_single_lost_class_is_refused_though_most_agree(spec):
    rare = change(make_answers(), "classes", lambda classes: np.where(np.arange(BOXES + 1) < 3, 1, 2)[None])
    assert judge_answers(spec, rare, rare).warnings == ()
    merged = change(rare, "classes", lambda classes: np.where(np.arange(BOXES + 1) < 2, 2, classes[0])[None])
    with pytest.raises(ExportError, match=r"lost classes: cell \(4 of 12\)"):
        judge_answers(spec, rare, merged)


def test_classes_that_no_picture_shows_are_said(spec):
    many = replace(spec, class_names=("cell", "dot", "rod", "disc", "ring"))
    (warning,) = judge_answers(many, make_answers(), make_answers()).warnings
    assert warning.startswith("the calibration pictures show 2 of the model's 5 classes")


def test_nothing_found_says_nothing(spec):
    empty = change(make_answers(), "count", np.zeros_like)
    with pytest.raises(DataError, match="finds nothing on the 4 calibration pictures"):
        judge_answers(spec, empty, make_answers())


def test_proposals_are_compared_without_classes(spec):
    proposer = replace(spec, tasks=("proposals",))
    swapped = change(make_answers(), "classes", np.ones_like)
    assert judge_answers(proposer, make_answers(), swapped).notes[0].count("100.0%") == 2


def test_classifiers_are_compared_by_their_best_class(spec):
    classifier = replace(spec, tasks=("classification",), seams={"classification": ("probs",)})
    before = [{"probs": np.eye(3, dtype=np.float32)[[index % 3]]} for index in range(9)]
    assert judge_answers(classifier, before, before).notes == (
        "on the calibration pictures: 100.0% of the pictures get the class that the fp32 model gives them",
    )
    with pytest.raises(ExportError, match=r"33.3% of the pictures"):
        judge_answers(classifier, before, [before[0]] * 9)
