from __future__ import annotations

import numpy as np
import pytest

from roiline.core.structures import Float32, Proposals
from roiline.report.drawing import DrawingRules, draw_picture
from roiline.report.heat import measure_heat

HEIGHT, WIDTH = 40, 50


def heat_spelled_out(boxes: Float32, scores: Float32) -> np.ndarray:
    """Pixel by pixel."""
    heat = np.zeros((HEIGHT, WIDTH))
    for (left, top, right, bottom), score in zip(np.round(boxes).tolist(), scores.tolist(), strict=True):
        inside = [(y, x) for y in range(HEIGHT) for x in range(WIDTH) if left <= x <= right and top <= y <= bottom]
        for place in inside:
            heat[place] += score / len(inside) ** 0.5
    return heat / heat.max() if heat.max() > 0 else heat


@pytest.mark.parametrize("seed", range(5))
def test_heat_is_the_sum_of_spread_scores(seed: int) -> None:
    random = np.random.default_rng(seed)
    corners = np.sort(random.uniform(-10, 60, (30, 2, 2)), axis=1)
    boxes = corners.reshape(30, 4).astype(np.float32)
    scores = random.random(30).astype(np.float32)
    np.testing.assert_allclose(measure_heat(boxes, scores, HEIGHT, WIDTH), heat_spelled_out(boxes, scores), atol=1e-12)


def test_nothing_gives_no_heat() -> None:
    boxes = np.array([[5, 5, 9, 9], [60, 60, 70, 70]], np.float32)
    assert not measure_heat(boxes[:0], np.zeros(0, np.float32), HEIGHT, WIDTH).any()
    assert not measure_heat(boxes, np.zeros(2, np.float32), HEIGHT, WIDTH).any()
    assert not measure_heat(boxes[1:], np.ones(1, np.float32), HEIGHT, WIDTH).any()


def test_a_picture_is_warm_where_proposals_come_together() -> None:
    boxes = np.array([[40, 40, 99, 99], [70, 70, 99, 99], [200, 40, 250, 90]], np.float32)
    found = Proposals(1, boxes, np.array([0.9, 0.9, 0.1], np.float32))
    drawn = draw_picture(np.full((300, 400, 3), 90, np.uint8), found, DrawingRules(heat=True))
    hot, cold, none = (drawn[place].astype(int) for place in ((85, 85), (60, 225), (200, 300)))
    assert hot[2] > hot[0]
    assert cold[0] > cold[2]
    assert none.tolist() == [90, 90, 90]
