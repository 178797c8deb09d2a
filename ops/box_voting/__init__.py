"""Box voting: kept boxes are refined by all boxes that they stand for. It runs on the host, so there is a numpy form only.

Source: Gidaris and Komodakis, Object detection via a multi-region and semantic segmentation-aware CNN model (2015), and the scoring
methods of Detectron's `box_voting`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np

from roiline.core.boxes import box_ious
from roiline.core.errors import ConfigError
from roiline.core.structures import Float32

ScoringMethod: TypeAlias = Literal["ID", "AVG", "IOU_AVG", "GENERALIZED_AVG", "QUASI_SUM", "TEMP_AVG"]
SCORING_METHODS: tuple[ScoringMethod, ...] = get_args(ScoringMethod)


@dataclass(frozen=True, slots=True)
class BoxVoting:
    """Is who votes (boxes with at least `vote_thresh` IoU) and how votes become a score; see `vote_score`.

    Detectron never passes its configured beta on, so a Detectron model has `beta` 1.

    Raises:
        ConfigError: the scoring method is unknown.
    """

    vote_thresh: float
    scoring_method: ScoringMethod = "ID"
    beta: float = 1.0

    def __post_init__(self) -> None:
        if self.scoring_method not in SCORING_METHODS:
            raise ConfigError(
                f"box voting: the scoring method is one of {', '.join(SCORING_METHODS)}, not {self.scoring_method!r}; "
                "set TEST.BBOX_VOTE.SCORING_METHOD"
            )


def vote_boxes(
    kept: Float32, kept_scores: Float32, boxes: Float32, scores: Float32, rule: BoxVoting
) -> tuple[Float32, Float32]:
    """Returns refined boxes (D, 4) and scores (D,) of kept boxes (D, 4), inclusive corners, by the votes of all boxes (n, 4).

    A kept box becomes the mean of its voters, weighted by their scores. `boxes` hold the kept ones too.
    """
    refined, rescored = kept.copy(), kept_scores.copy()
    for row, overlaps in enumerate(box_ious(kept, boxes)):
        voters = np.flatnonzero(overlaps >= np.float32(rule.vote_thresh))
        refined[row] = np.average(boxes[voters], axis=0, weights=scores[voters])
        if rule.scoring_method != "ID":
            rescored[row] = vote_score(scores[voters], overlaps[voters], rule)
    return refined, rescored


def vote_score(scores: Float32, overlaps: Float32, rule: BoxVoting) -> float:
    """Returns the score that the votes give, from their scores (n,) and overlaps (n,) with the kept box.

    AVG: the mean. IOU_AVG: the mean weighted by overlap. GENERALIZED_AVG: (mean of w^beta)^(1/beta). QUASI_SUM: sum / n^beta.
    TEMP_AVG: the mean after each (w, 1 - w) is made softer by the temperature beta.
    """
    match rule.scoring_method:
        case "AVG":
            return float(scores.mean())
        case "IOU_AVG":
            return float(np.average(scores, weights=overlaps))
        case "GENERALIZED_AVG":
            return float(np.mean(scores**rule.beta) ** (1.0 / rule.beta))
        case "QUASI_SUM":
            return float(scores.sum() / float(len(scores)) ** rule.beta)
        case _:
            return _softened_mean(scores, rule.beta)


def _softened_mean(scores: Float32, temperature: float) -> float:
    chances = np.vstack([scores, 1.0 - scores])
    with np.errstate(divide="ignore"):
        softened = np.exp(np.log(chances / chances.max(axis=0)) / temperature)
    return float((softened / softened.sum(axis=0))[0].mean())
