from __future__ import annotations

import numpy as np
import pytest
from golden_cases import golden_cases
from operator_forms import FORMS, forms_of

from roiline.ops.anchors.retinanet import generate_retinanet_anchors
from roiline.ops.box_coding import decode_boxes
from roiline.ops.retinanet_candidates import RETINANET_CANDIDATES
from roiline.ops.retinanet_output import RETINANET_OUTPUT, retinanet_results
from roiline.ops.soft_nms import SoftNms
from roiline.ops.suppression import suppress_boxes

CLIP = float(np.log(1000.0 / 16.0))
STRIDES = (8.0, 16.0, 32.0)
MAPS = ((7, 9), (4, 5), (2, 3))
A, C = 6, 4
CANDIDATE_RULES = {"strides": STRIDES, "pre_nms_top_n": 50, "delta_clip": CLIP}
OUTPUT_RULES = {"num_classes": C + 1, "score_thresh": 0.3, "nms_thresh": 0.4, "max_dets": 20}
NO_PLUS_ONE = {"size_offset": 0.0, "corner_offset": 0.0}
NOTHING = {"score_thresh": 2.0, "coarsest_score_thresh": 2.0}


def _maps(seed: int, images: int = 2, decimals: int = 9) -> tuple[np.ndarray, ...]:
    """Returns inputs of RetinaNetCandidates; few decimals make many scores equal."""
    rng = np.random.default_rng(seed)
    probabilities = [
        np.round(rng.uniform(0, 1, (images, A * C, *cells)), decimals).astype(np.float32) for cells in MAPS
    ]
    deltas = [rng.normal(0, 0.7, (images, 4 * A, *cells)).astype(np.float32) for cells in MAPS]
    anchors = np.stack([generate_retinanet_anchors(level, (1.0, 2.0, 0.5), 2, 4) for level in (3, 4, 5)])
    scale = rng.uniform(0.3, 2.0, (images, 1))
    info = np.concatenate([np.tile([[56.0, 72.0]], (images, 1)), scale], axis=1).astype(np.float32)
    size = np.floor(info[:, :2] / info[:, 2:])
    return (*probabilities, *deltas, anchors.astype(np.float32), info, size)


def _candidates(seed: int, images: int = 2, decimals: int = 9) -> tuple[np.ndarray, ...]:
    return RETINANET_CANDIDATES.run(*_maps(seed, images, decimals), **CANDIDATE_RULES)


def _picture(arrays: tuple[np.ndarray, ...], image: int) -> tuple[np.ndarray, ...]:
    """Returns one picture's inputs; `anchors` are everyone's."""
    return tuple(array if array.shape == (3, A, 4) else array[image : image + 1] for array in arrays)


@pytest.mark.golden
@pytest.mark.parametrize("case", golden_cases("detectron_py", "retinanet_cell_anchors"))
def test_anchors_match_detectron(case):
    args = case.args
    anchors = generate_retinanet_anchors(
        args["level"], args["aspect_ratios"], args["scales_per_octave"], args["anchor_scale"]
    )
    assert anchors.dtype == np.float64
    np.testing.assert_allclose(anchors, case.outputs[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize(
    ("level", "octave", "expected"),
    [
        (3, 0, [(-12, -12, 19, 19), (-8, -20, 15, 27), (-18, -8, 25, 15)]),
        (
            3,
            1,
            [
                (-16.1587, -16.1587, 23.1587, 23.1587),
                (-11.1191, -26.2381, 18.1191, 33.2381),
                (-23.7183, -11.1191, 30.7183, 18.1191),
            ],
        ),
        (7, 0, [(-192, -192, 319, 319), (-118, -300, 245, 427), (-298, -116, 425, 243)]),
    ],
)
def test_octaves_are_the_outer_loop_of_anchors(level, octave, expected):
    anchors = generate_retinanet_anchors(level, (1.0, 2.0, 0.5), 3, 4)
    assert anchors.shape == (9, 4)
    np.testing.assert_allclose(anchors[3 * octave : 3 * octave + 3], expected, atol=1e-4)


CANDIDATE_VARIATIONS = {
    "detectron": {},
    "all": {"pre_nms_top_n": 0},
    "one": {"pre_nms_top_n": 1},
    "anchors_themselves": {"regress": 0},
    "detectron2": NO_PLUS_ONE,
}


@pytest.mark.parametrize("variation", CANDIDATE_VARIATIONS)
@pytest.mark.parametrize("decimals", [2, 9])
@pytest.mark.parametrize("images", [1, 3])
def test_forms_of_candidates_agree(images, decimals, variation, capfd):
    rules = {**CANDIDATE_RULES, **CANDIDATE_VARIATIONS[variation]}
    arrays = _maps(images, images, decimals)
    results = {form: run(RETINANET_CANDIDATES, arrays, **rules) for form, run in forms_of(RETINANET_CANDIDATES).items()}
    assert capfd.readouterr().err == "", "the runtime warns about the function"
    reference = results.pop("reference")
    for form, outputs in results.items():
        declared = RETINANET_CANDIDATES.outputs.items()
        for (name, (dtype, rank)), expected, got in zip(declared, reference, outputs, strict=True):
            assert (expected.dtype, expected.ndim) == (np.dtype(dtype), rank), name
            assert (got.dtype, got.shape) == (expected.dtype, expected.shape), (form, name)
            atol = 1e-4 if name == "boxes" else 0
            np.testing.assert_allclose(got, expected, atol=atol, rtol=0, err_msg=f"{form} {name}")


@pytest.mark.parametrize("form", FORMS)
def test_candidates_of_a_picture_do_not_depend_on_its_batch(form):
    arrays = _maps(4, images=3, decimals=2)
    together = FORMS[form](RETINANET_CANDIDATES, arrays, **CANDIDATE_RULES)
    for image in range(3):
        alone = FORMS[form](RETINANET_CANDIDATES, _picture(arrays, image), **CANDIDATE_RULES)
        for got, expected in zip(together, alone, strict=True):
            np.testing.assert_array_equal(got[image : image + 1], expected)


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_are_taken_in_the_order_of_the_tensor(form):
    arrays = list(_maps(5, images=1))
    arrays[0] = np.full_like(arrays[0], 0.5)
    arrays[0][0, 2 * C + 3, 6, 8] = 0.75
    rules = {**CANDIDATE_RULES, "pre_nms_top_n": 65, "regress": 0}
    boxes, scores, classes, levels = FORMS[form](RETINANET_CANDIDATES, tuple(arrays), **rules)
    assert scores[0, :65].tolist() == [0.75] + [0.5] * 64
    assert classes[0, :65].tolist() == [4] + [1] * 63 + [2]
    assert levels[0].tolist() == [0] * 65 + [1] * 65 + [2] * 65
    anchors, scale, (height, width) = arrays[6][0], arrays[7][0, 2], arrays[8][0]
    for row, (anchor, y, x) in enumerate([(2, 6, 8), *((0, y, x) for y in range(7) for x in range(9))]):
        placed = (anchors[anchor] + 8 * np.array([x, y, x, y])) / scale
        expected = np.clip(placed, 0, np.array([width, height, width, height]) - 1)
        np.testing.assert_allclose(boxes[0, row], expected, atol=1e-4)


OUTPUT_VARIATIONS = {
    "detectron": {},
    "no_limit": {"max_dets": 0},
    "one": {"max_dets": 1},
    "plenty": {"max_dets": 10000},
    "one_threshold": {"coarsest_score_thresh": 0.3},
    "nothing": NOTHING,
    "detectron2": {"size_offset": 0.0, "nms_inclusive": 0},
}


@pytest.mark.parametrize("variation", OUTPUT_VARIATIONS)
@pytest.mark.parametrize("decimals", [1, 2, 9])
@pytest.mark.parametrize("images", [1, 3])
def test_forms_of_the_output_agree_exactly(images, decimals, variation, capfd):
    rules = {**OUTPUT_RULES, **OUTPUT_VARIATIONS[variation]}
    candidates = _candidates(images, images, decimals)
    results = {form: run(RETINANET_OUTPUT, candidates, **rules) for form, run in forms_of(RETINANET_OUTPUT).items()}
    assert capfd.readouterr().err == "", "the runtime warns about the function"
    reference = results.pop("reference")
    for form, outputs in results.items():
        declared = RETINANET_OUTPUT.outputs.items()
        for (name, (dtype, rank)), expected, got in zip(declared, reference, outputs, strict=True):
            assert (expected.dtype, expected.ndim) == (np.dtype(dtype), rank), name
            assert got.dtype == expected.dtype, (form, name)
            np.testing.assert_array_equal(got, expected, err_msg=f"{form} {name}")


@pytest.mark.parametrize("form", FORMS)
def test_no_candidates_give_no_detections(form):
    rows = (np.zeros((2, 0, 4), np.float32), np.zeros((2, 0), np.float32), *(np.zeros((2, 0), np.int64),) * 2)
    boxes, scores, classes, count = FORMS[form](RETINANET_OUTPUT, rows, **OUTPUT_RULES)
    assert (boxes.shape, scores.shape, classes.shape, count.tolist()) == ((2, 0, 4), (2, 0), (2, 0), [0, 0])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("max_dets", [0, 5, 1000])
def test_detections_of_a_picture_do_not_depend_on_its_batch(form, max_dets):
    rules = {**OUTPUT_RULES, "max_dets": max_dets}
    arrays = list(_candidates(6, images=3, decimals=2))
    arrays[1] = arrays[1].copy()
    arrays[1][1] = 0.0
    boxes, scores, classes, count = FORMS[form](RETINANET_OUTPUT, tuple(arrays), **rules)
    assert count[1] == 0
    assert count[0] > 0
    assert boxes.shape[1] == count.max()
    for image in range(3):
        n = count[image]
        alone = FORMS[form](RETINANET_OUTPUT, tuple(array[image : image + 1] for array in arrays), **rules)
        for got, expected in zip((boxes, scores, classes), alone, strict=False):
            np.testing.assert_array_equal(got[image, :n], expected[0])
        assert (boxes[image, n:] == 0).all()
        assert (scores[image, n:] == -np.inf).all()
        assert (classes[image, n:] == 0).all()


def _row_of_boxes(*rows: tuple[float, int, int]) -> tuple[np.ndarray, ...]:
    """Returns candidates (score, class, level) of one picture that do not overlap."""
    scores, classes, levels = zip(*rows, strict=True)
    boxes = np.array([[[20 * i, 0, 20 * i + 9, 9] for i in range(len(rows))]], np.float32)
    return boxes, np.array([scores], np.float32), np.array([classes], np.int64), np.array([levels], np.int64)


@pytest.mark.parametrize("form", FORMS)
def test_the_coarsest_level_has_its_own_threshold(form):
    rows = _row_of_boxes((0.3, 1, 0), (0.31, 1, 1), (0.29, 2, 1), (0.01, 2, 2), (0.0, 3, 2), (0.2, 1, 0))
    _, scores, classes, _ = FORMS[form](RETINANET_OUTPUT, rows, **OUTPUT_RULES)
    assert scores[0].tolist() == [np.float32(0.31), np.float32(0.01)]
    assert classes[0].tolist() == [1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_each_picture_has_a_coarsest_level_of_its_own(form):
    pictures = _row_of_boxes((0.2, 1, 0), (0.1, 1, 1)), _row_of_boxes((0.2, 1, 1), (0.1, 1, 2))
    rows = tuple(np.concatenate(arrays) for arrays in zip(*pictures, strict=True))
    _, scores, _, count = FORMS[form](RETINANET_OUTPUT, rows, **OUTPUT_RULES)
    assert count.tolist() == [1, 1]
    assert scores.tolist() == [[np.float32(0.1)]] * 2


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("max_dets", "kept"),
    [(1, [20]), (2, [80, 20]), (3, [80, 20, 40]), (4, [80, 0, 20, 40]), (0, [80, 0, 20, 40, 60])],
)
def test_the_limit_keeps_exactly_so_many_class_by_class(form, max_dets, kept):
    rows = _row_of_boxes((0.5, 2, 0), (0.9, 3, 0), (0.6, 3, 0), (0.5, 3, 0), (0.6, 1, 0))
    boxes, _, _, count = FORMS[form](RETINANET_OUTPUT, rows, **{**OUTPUT_RULES, "max_dets": max_dets})
    assert boxes[0, :, 0].tolist() == kept
    assert count.tolist() == [len(kept)]


@pytest.mark.parametrize("form", FORMS)
def test_equal_scores_at_the_limit_keep_the_lower_class_and_the_earlier_candidate(form):
    rows = _row_of_boxes((0.5, 2, 0), (0.5, 1, 0), (0.5, 2, 0), (0.5, 1, 0))
    boxes, _, classes, _ = FORMS[form](RETINANET_OUTPUT, rows, **{**OUTPUT_RULES, "max_dets": 3})
    assert boxes[0, :, 0].tolist() == [20, 60, 0]
    assert classes[0].tolist() == [1, 1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_levels_suppress_each_other_and_classes_do_not(form):
    box = np.array([0, 0, 99, 99], np.float32)
    boxes = np.tile(box, (1, 4, 1))
    scores = np.array([[0.9, 0.8, 0.7, 0.6]], np.float32)
    classes, levels = np.array([[1, 2, 1, 2]]), np.array([[0, 0, 1, 2]])
    _, kept, labels, _ = FORMS[form](RETINANET_OUTPUT, (boxes, scores, classes, levels), **OUTPUT_RULES)
    assert kept[0].tolist() == [np.float32(0.9), np.float32(0.8)]
    assert labels[0].tolist() == [1, 2]


@pytest.mark.parametrize("form", FORMS)
def test_a_box_turned_inside_out_overlaps_nothing(form):
    # x2 + 1 < x1 and y2 + 1 < y1: with its corners exchanged it would cover most of the others.
    boxes = np.array([[[60, 60, 2, 2], [0, 0, 61, 61], [0, 0, 62, 62]]], np.float32)
    scores = np.array([[0.9, 0.8, 0.7]], np.float32)
    labels = np.ones((1, 3), np.int64)
    got = FORMS[form](RETINANET_OUTPUT, (boxes, scores, labels, labels), **OUTPUT_RULES)
    assert got[0][0].tolist() == boxes[0, :2].tolist()


def _detect_as_the_original(arrays: tuple[np.ndarray, ...], image: int, rules: dict, top_n: int) -> list[list[float]]:
    """Answers rows (box, score, class), threshold before selection, one level and one class at a time."""
    probabilities, deltas, (anchors, info, size) = arrays[:3], arrays[3:6], arrays[6:]
    by_class: dict[int, list[np.ndarray]] = {}
    for level, stride in enumerate(STRIDES):
        block = probabilities[level][image].reshape(A, C, *MAPS[level])
        above = np.argwhere(block > np.float32(rules["score_thresh"] if level < 2 else 0.0))
        ranked = sorted(above.tolist(), key=lambda at: -block[tuple(at)])[:top_n]
        for a, c, y, x in ranked:
            shift = np.float32(stride) * np.array([x, y, x, y], np.float32)
            delta = deltas[level][image, 4 * a : 4 * a + 4, y, x]
            box = decode_boxes(
                (anchors[level, a] + shift)[None], delta[None], size_offset=1.0, corner_offset=1.0, delta_clip=CLIP
            )[0]
            height, width = size[image]
            box = np.clip(box / info[image, 2], 0, np.array([width, height, width, height], np.float32) - 1)
            by_class.setdefault(c + 1, []).append(np.append(box, block[a, c, y, x]))
    found = []
    for label in sorted(by_class):
        rows = np.stack(by_class[label]).astype(np.float32)
        kept = suppress_boxes(rows[:, :4], rows[:, 4], threshold=rules["nms_thresh"], inclusive=True, plus_one=1.0)
        found += [[*row.tolist(), label] for row in rows[np.sort(kept)]]
    best = sorted(found, key=lambda row: -row[4])[: rules["max_dets"]]
    return sorted(best, key=lambda row: row[5])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("score_thresh", "top_n"), [(0.05, 1000), (0.9, 50), (0.97, 5)])
def test_a_threshold_after_the_selection_answers_as_one_before_it(form, score_thresh, top_n):
    arrays = _maps(7)
    rules = {**OUTPUT_RULES, "score_thresh": score_thresh}
    candidates = FORMS[form](RETINANET_CANDIDATES, arrays, **{**CANDIDATE_RULES, "pre_nms_top_n": top_n})
    boxes, scores, classes, count = FORMS[form](RETINANET_OUTPUT, candidates, **rules)
    for image in range(2):
        expected = np.array(_detect_as_the_original(arrays, image, rules, top_n))
        n = count[image]
        assert n == len(expected)
        np.testing.assert_array_equal(classes[image, :n], expected[:, 5].astype(int))
        np.testing.assert_allclose(boxes[image, :n], expected[:, :4], atol=1e-4, rtol=0)
        np.testing.assert_allclose(scores[image, :n], expected[:, 4], atol=1e-7, rtol=0)


def test_soft_nms_lowers_scores_where_nms_drops_boxes():
    boxes = np.array([[0, 0, 9, 9], [0, 0, 9, 9], [50, 0, 59, 9]], np.float32)
    scores = np.array([0.9, 0.8, 0.5], np.float32)
    ones = np.ones(3, np.int64)
    rules = {"num_classes": 3, "score_thresh": 0.05, "nms_thresh": 0.4}
    hard = retinanet_results(boxes, scores, ones, ones, **rules, max_dets=10)
    assert hard[1].tolist() == [np.float32(0.9), np.float32(0.5)]
    soft = retinanet_results(boxes, scores, ones, ones, **rules, max_dets=10, soft=SoftNms("gaussian", 0.5))
    assert soft[0].tolist() == boxes[[0, 2, 1]].tolist()
    np.testing.assert_allclose(soft[1], [0.9, 0.5, 0.8 * np.exp(-2)], rtol=1e-6)
    limited = retinanet_results(boxes, scores, ones, ones, **rules, max_dets=2, soft=SoftNms("gaussian", 0.5))
    assert limited[1].tolist() == soft[1][:2].tolist()
