"""Bodies: a picture into feature maps, by level (a cell of level l is 2^l pixels wide)."""

from __future__ import annotations

from roiline.export.architecture import Body, MobileNet, PlainBody, Pyramid
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature
from roiline.export.mobilenet import write_mobilenet
from roiline.export.plain_body import write_plain_body
from roiline.export.pyramid import write_pyramid
from roiline.export.resnet import write_resnet


def write_body(g: GraphWriter, body: Body, pyramid: Pyramid | None, picture: Feature) -> dict[int, Feature]:
    """Writes a body, with its pyramid where it has one; a body alone gives its last feature."""
    if isinstance(body, PlainBody):
        return {body.level: write_plain_body(g, body, picture)}
    stages = write_mobilenet(g, body, picture) if isinstance(body, MobileNet) else write_resnet(g, body, picture)
    if pyramid is not None:
        return write_pyramid(g, pyramid, stages)
    return {max(stages): stages[max(stages)]}
