"""What goes into a model and is taken from it by name: the input tensors of a batch, those of given proposals included, and taps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from roiline.core.errors import UsageError
from roiline.core.spec import GivenProposals, ImageRules, ModelSpec
from roiline.core.structures import Float32, ImageBatch, ImageId, Taps, UInt8
from roiline.engines.protocol import Tensor
from roiline.infer.given_proposals import GivenRois, stack_clipped_rois, stack_given_rois
from roiline.infer.preparation import image_scale, prepare_picture, stack_batch


def image_feeds(batch: ImageBatch) -> dict[str, Tensor]:
    """Returns the inputs that come from the pictures alone."""
    return {"data": batch.pixels, "im_info": batch.im_info, "im_size": batch.sizes}


def make_feeds(batch: ImageBatch, spec: ModelSpec, rules: ImageRules) -> dict[str, Tensor]:
    """Returns the inputs of a batch that was prepared by `rules`.

    Raises:
        UsageError: the model takes given proposals and the batch has none.
    """
    feeds = image_feeds(batch)
    if spec.given_proposals is not None:
        if len(batch.proposals) != len(batch.ids):
            raise UsageError(
                "this model makes no proposals of its own: give it some (`--proposals`, `--proposals-from`)"
            )
        given = _stack_rois(batch, spec.given_proposals, rules)
        feeds |= zip(spec.seams["given_rois"], (given.rois, given.roi_index, given.roi_count), strict=True)
    return feeds


def _stack_rois(batch: ImageBatch, rule: GivenProposals, rules: ImageRules) -> GivenRois:
    if rule.network_frame:
        return stack_clipped_rois(batch.proposals, batch.sizes, batch.im_info[:, :2], rule)
    # im_info's scale is rounded to float32; what rounds RoIs to cells is the scale itself
    scales = [image_scale(int(height), int(width), rules) for height, width in batch.sizes]
    return stack_given_rois(batch.proposals, scales, rule)


def batch_from_picture(
    picture: UInt8, rules: ImageRules, image_id: ImageId, proposals: Sequence[Float32] = ()
) -> ImageBatch:
    """Returns a batch of one picture, prepared by `rules`."""
    batch = stack_batch([prepare_picture(picture, rules)], [image_id])
    return replace(batch, pictures=(picture,), proposals=tuple(proposals))


def copy_taps(tensors: Mapping[str, Tensor], names: Sequence[str]) -> Taps:
    """Returns copies of the named tensors: they are kept while the engine, which may use its memory again, runs on."""
    return {name: tensors[name].copy() for name in names}


def split_batch(batch: ImageBatch) -> list[ImageBatch]:
    """Returns the batch as batches of one picture."""
    rows = range(len(batch.ids))
    return [
        ImageBatch(
            batch.pixels[row : row + 1],
            batch.im_info[row : row + 1],
            batch.sizes[row : row + 1],
            batch.ids[row : row + 1],
            batch.pictures[row : row + 1],
            batch.proposals[row : row + 1],
        )
        for row in rows
    ]


def count_proposals(batch: ImageBatch) -> int:
    """Returns how many given proposals the pictures of a batch have together."""
    return int(np.sum([len(boxes) for boxes in batch.proposals], dtype=np.int64))
