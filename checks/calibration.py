"""Calibration of an export on a dataset, through the input path of a run: the pictures are read, prepared and judged here."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from roiline.checks.agreement import judge_answers
from roiline.core.errors import DataError, UsageError
from roiline.core.spec import GivenProposals, ModelSpec
from roiline.core.structures import Float32, RoidbEntry, UInt8
from roiline.export.activation_ranges import Answers, Feeds
from roiline.export.precision import Verdict
from roiline.infer.datasets import load_dataset, with_sizes
from roiline.infer.feeds import batch_from_picture, make_feeds
from roiline.infer.pictures import read_picture
from roiline.infer.roidb import shorten
from roiline.infer.run_proposals import load_given_proposals

_LOG = logging.getLogger("roiline")
DEFAULT_LIMIT = 100
_LEAST_CONTRAST = 16  # grey levels between a picture's darkest and brightest values


@dataclass(frozen=True, slots=True)
class DatasetCalibration:
    """Calibrates on at most `limit` pictures of a dataset, spread evenly over it.

    `source`, `images` and `split` say where the dataset is, as in a run; `proposals` is a proposal file for a model that
    makes none itself.
    """

    source: str
    images: Path | None = None
    split: str | None = None
    proposals: Path | None = None
    limit: int = DEFAULT_LIMIT

    def feeds(self, spec: ModelSpec) -> Iterator[Feeds]:
        """Yields the inputs of each picture, as a run over the dataset would make them.

        Raises:
            DataError: the dataset or a picture cannot be used, or half of the pictures or more show nothing.
            UsageError: an option does not fit the dataset, or proposals are missing or not wanted.
            ModelError: the model says nothing of pictures.
        """
        rules = spec.image_rules
        entries = self._choose_entries(spec)
        given = self._load_proposals(spec.given_proposals, entries)
        _LOG.info("%s: running %d pictures for calibration", self.source, len(entries))
        blank: list[str] = []
        for entry, proposals in zip(entries, given, strict=True):
            picture = read_picture(entry.path, exif=rules.exif)
            if _is_blank(picture):
                blank.append(str(entry.path))
                _refuse_blank(blank, len(entries))
            own = () if proposals is None else (proposals,)
            yield make_feeds(batch_from_picture(picture, rules, entry.image_id, own), spec, rules)

    def judge(self, spec: ModelSpec, expected: Sequence[Answers], got: Sequence[Answers]) -> Verdict:
        """Compares what the fp32 model and the changed one answer.

        Raises:
            ExportError: they agree too little.
            DataError: the fp32 model finds nothing on the pictures.
        """
        return judge_answers(spec, expected, got)

    def _choose_entries(self, spec: ModelSpec) -> tuple[RoidbEntry, ...]:
        if self.limit < 1:
            raise UsageError(f"--calibrate-limit: expected a number of pictures of at least 1, got {self.limit}")
        names = spec.class_names if spec.class_names_known else None
        dataset = load_dataset(self.source, images=self.images, split=self.split, class_names=names)
        every = dataset.entries
        count = min(self.limit, len(every))
        return tuple(every[index * len(every) // count] for index in range(count))

    def _load_proposals(self, rule: GivenProposals | None, entries: tuple[RoidbEntry, ...]) -> Sequence[Float32 | None]:
        if rule is None:
            if self.proposals is not None:
                raise UsageError(
                    "--calibrate-proposals: this model makes its own proposals; it takes none from outside"
                )
            return [None] * len(entries)
        if self.proposals is None:
            raise UsageError(
                "this model makes no proposals of its own: give a file of them for the calibration pictures "
                "(--calibrate-proposals FILE.pkl)"
            )
        return load_given_proposals(self.proposals, with_sizes(entries), rule)


def _is_blank(picture: UInt8) -> bool:
    return int(np.ptp(picture)) < _LEAST_CONTRAST


def _refuse_blank(blank: Sequence[str], pictures: int) -> None:
    if 2 * len(blank) >= pictures:
        raise DataError(
            f"at least {len(blank)} of the {pictures} calibration pictures are of one colour and show nothing ({shorten(blank, limit=3)}); "
            "ranges measured on them would be wrong. Give pictures such as the model will see"
        )
