"""Detections of one picture found again in the next: Track R-CNN over pairs of pictures.

Both pictures are detected in as always; then a stage of the same model says how similar every detection of the first is to every one of
the second, on the final boxes, and the assignment is made here. The stage runs the body again: detections are whatever the model's own
options make of them on the host, and need no second form here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from roiline.core.errors import EXIT_DONE, EXIT_SOME_FAILED, DataError, UsageError
from roiline.core.files import write_json
from roiline.core.spec import ModelSpec
from roiline.core.structures import Detections, Float32, ImageBatch, ImageId, UInt8
from roiline.engines.model_file import read_spec
from roiline.engines.protocol import Device, Engine, Stage
from roiline.engines.registry import open_engine
from roiline.infer.assignment import assign_rows
from roiline.infer.detection_rules import network_scales, stack_rois
from roiline.infer.feeds import image_feeds
from roiline.infer.model import open_predictor
from roiline.infer.pairs import PicturePair, read_pairs
from roiline.infer.pictures import read_picture
from roiline.infer.predictor import Predictor
from roiline.infer.preparation import prepare_picture, stack_batch
from roiline.infer.request import RunOverrides, RunSummary, spec_with_overrides

TRACKS_FILE = "tracks.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Match:
    """Is a detection found again: its row in the first picture, its row in the second, and how similar they are."""

    first: int
    second: int
    similarity: float


@dataclass(frozen=True, slots=True)
class TrackedPair:
    """Is the answer for two pictures: the detections of both, `similarity` (n1, n2) of every pair, and those that belong together."""

    first: Detections
    second: Detections
    similarity: Float32
    matches: tuple[Match, ...]


class Tracker:
    """Answers pairs of pictures with a model that stays open.

    `spec` is its specification, overrides applied; `threshold` is the similarity from which detections belong together.
    """

    def __init__(self, detector: Predictor, stage: Engine, spec: ModelSpec, threshold: float) -> None:
        """Takes over an opened detector and an engine of the stage from the pictures and boxes to similarities."""
        self.spec = spec
        self.threshold = threshold
        self._detector = detector
        self._stage = stage

    def track(self, first: UInt8, second: UInt8, ids: tuple[ImageId, ImageId] = (0, 1)) -> TrackedPair:
        """Detects in two BGR pictures (H, W, 3) uint8 and pairs what was found.

        Raises:
            DataError: the pictures are of different sizes as network input.
        """
        prepared = [prepare_picture(picture, self.spec.image_rules) for picture in (first, second)]
        shapes = [picture.pixels.shape[1:] for picture in prepared]
        if shapes[0] != shapes[1]:
            raise DataError(
                f"{ids[0]} and {ids[1]}: pictures of a pair must be of one size, their network inputs are {shapes[0]} and {shapes[1]}"
            )
        batch = replace(stack_batch(prepared, ids), pictures=(first, second))
        found = [one for one in self._detector.run(batch) if isinstance(one, Detections)]
        similarity = self._compare(batch, found)
        matches = match_detections(similarity, found[0], found[1], threshold=self.threshold)
        return TrackedPair(found[0], found[1], similarity, matches)

    def _compare(self, batch: ImageBatch, found: Sequence[Detections]) -> Float32:
        rois = stack_rois(found, network_scales(batch, self.spec.conventions))
        (name,) = self.spec.seams["track_rois"]
        feeds = {**image_feeds(batch), name: rois}
        outputs = self._stage.run({info.name: feeds[info.name] for info in self._stage.inputs})
        (similarity,) = outputs.values()
        return np.asarray(similarity, np.float32).reshape([len(one.scores) for one in found])

    def close(self) -> None:
        """Gives the engines back."""
        self._detector.close()
        self._stage.close()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def match_detections(
    similarity: Float32, first: Detections, second: Detections, *, threshold: float
) -> tuple[Match, ...]:
    """Returns the pairs of rows by Detectron's tracking rule.

    Similarities of detections of different classes, and those up to the threshold, count as none; then rows are assigned one to one with
    the largest sum, and pairs from the threshold on are taken.
    """
    same = first.classes[:, None] == second.classes[None]
    kept = np.where(same & (similarity > threshold), similarity, np.float32(0))
    rows, columns = assign_rows(kept)
    pairs = zip(rows.tolist(), columns.tolist(), kept[rows, columns].tolist(), strict=True)
    return tuple(Match(*pair) for pair in pairs if pair[2] > 0 and pair[2] >= threshold)


def open_tracker(
    model: Path, device: Device, *, engine: str = "auto", overrides: RunOverrides | None = None
) -> Tracker:
    """Opens a model with a tracking head.

    Raises:
        UsageError: the model has none, or makes no proposals of its own.
        ModelError: the file is no model of ours.
        EngineError: the engine or the device is not there.
    """
    asked = overrides or RunOverrides()
    spec = spec_with_overrides(read_spec(model), asked)
    if spec.tracks is None:
        raise UsageError(f"{model}: this model has no tracking head (MODEL.TRACKING_ON); `roiline detect` runs it")
    if spec.given_proposals is not None:
        raise UsageError(f"{model}: this model makes no proposals of its own: detections cannot be tracked with it")
    detector = open_predictor(model, "detections", device, engine=engine, overrides=asked)
    try:
        stage = Stage(outputs=tuple(spec.seams["tracks"]), inputs=tuple(spec.seams["track_rois"]))
        return Tracker(
            detector, open_engine(model, engine=engine, device=device, stage=stage), spec, spec.tracks.threshold
        )
    except BaseException:
        detector.close()
        raise


def track_pairs(
    model: Path,
    pairs: Path,
    out: Path,
    *,
    device: Device,
    engine: str = "auto",
    overrides: RunOverrides | None = None,
) -> RunSummary:
    """Tracks over every pair of a list and writes `tracks.json` into `out`; a pair that fails is named there with the reason.

    Raises:
        UsageError: the model has no tracking head, or `out` cannot be a folder.
        InputError: the model or the list cannot be used.
        EngineError: the engine cannot be opened or does not run.
    """
    listed = read_pairs(pairs)
    with open_tracker(model, device, engine=engine, overrides=overrides) as tracker:
        records = [_track_one(tracker, pair) for pair in listed]
        content = {
            "format_version": FORMAT_VERSION,
            "threshold": tracker.threshold,
            "classes": list(tracker.spec.class_names),
            "pairs": records,
        }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out}: cannot be made a folder ({error.strerror})") from error
    write_json(out / TRACKS_FILE, content)
    failed = sum("failure" in record for record in records)
    return RunSummary(EXIT_SOME_FAILED if failed else EXIT_DONE, len(records), failed, (out / TRACKS_FILE,))


def _track_one(tracker: Tracker, pair: PicturePair) -> dict[str, Any]:
    """Returns the record of one pair; what is wrong with its pictures becomes its failure."""
    try:
        first, second = (read_picture(path, exif=tracker.spec.image_rules.exif) for path in pair.paths)
        tracked = tracker.track(first, second, pair.names)
    except DataError as error:
        return {"images": list(pair.names), "failure": str(error)}
    matches = [{"rows": [one.first, one.second], "similarity": one.similarity} for one in tracked.matches]
    return {
        "images": list(pair.names),
        "detections": [_list_detections(tracked.first), _list_detections(tracked.second)],
        "matches": matches,
    }


def _list_detections(found: Detections) -> Mapping[str, Any]:
    return {"boxes": found.boxes.tolist(), "scores": found.scores.tolist(), "classes": found.classes.tolist()}
