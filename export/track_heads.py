"""The head of Track R-CNN: features of detections of two pictures into the similarity of every pair of them.

The first picture's rows are compared with those of all that follow; it is meant for a batch of two.
"""

from __future__ import annotations

from roiline.core.spec import Conventions
from roiline.export.architecture import TrackHead
from roiline.export.graph import GraphWriter
from roiline.export.heads import write_roi_features
from roiline.export.layers import Feature, write_fc, write_flatten, write_relu

SIMILARITY = "track_similarity"

_PURPOSE = "tracking head"
_SMALLEST_SQUARE = 1e-12  # of a length, as Caffe2's CosineSimilarity has it


def write_track_head(
    g: GraphWriter, head: TrackHead, features: dict[int, Feature], rois: str, conventions: Conventions
) -> str:
    """Writes the similarity (n1 * n2,) of RoI rows (n1 + n2, 5), those of the first picture outermost; n1 and n2 may be 0."""
    pooled = write_roi_features(g, head.transform, features, rois, conventions, "track_roi_feat")
    flat = write_flatten(g, pooled, head.transform.resolution**2)
    hidden = write_fc(g, flat, "track_fc", purpose=_PURPOSE, out=head.width, config_key="TRCNN.MLP_HEAD_DIM")
    rows = write_relu(g, hidden, "track_fc")
    later = g.op("Greater", g.squeeze(g.columns(rois, 0, 1), 1), g.scalar(0.5))
    first = g.op("Compress", rows.name, g.op("Not", later), axis=0)
    second = g.op("Compress", rows.name, later, axis=0)
    if head.hidden is None:
        return _write_cosine(g, first, second)
    return _write_match(g, _write_pairs(g, first, second, head.width), head.hidden)


def _write_pairs(g: GraphWriter, first: str, second: str, width: int) -> Feature:
    """Writes the features of both rows of every pair: (n1 * n2, 2 * width)."""
    (firsts,), (seconds,) = g.dims(first, 0), g.dims(second, 0)
    grid = g.concat(firsts, seconds, g.ints(width))
    outer = g.op("Expand", g.unsqueeze(first, 1), grid)
    inner = g.op("Expand", g.unsqueeze(second, 0), grid)
    both = g.concat(outer, inner, axis=2)
    return Feature(g.reshape(both, g.op("Mul", firsts, seconds), 2 * width), 2 * width)


def _write_match(g: GraphWriter, x: Feature, width: int) -> str:
    for layer in ("fc1", "fc2"):
        blob = f"track_pairs_{layer}"
        y = write_fc(g, x, blob, purpose=_PURPOSE, out=width, config_key="TRCNN.MLP_HIDDEN_DIM")
        x = write_relu(g, y, blob)
    scores = write_fc(g, x, "track_score", purpose=_PURPOSE, out=2, name="track_score")
    probabilities = g.op("Softmax", scores.name, name="track_prob", axis=1)
    return g.op("Squeeze", g.columns(probabilities, 1, 2), g.ints(1), name=SIMILARITY)


def _write_cosine(g: GraphWriter, first: str, second: str) -> str:
    cosine = g.op("MatMul", _write_unit(g, first), g.op("Transpose", _write_unit(g, second), perm=(1, 0)))
    count = g.op("Size", cosine)
    return g.op("Reshape", cosine, g.unsqueeze(count, 0), name=SIMILARITY, allowzero=1)


def _write_unit(g: GraphWriter, rows: str) -> str:
    """Writes rows of length 1."""
    square = g.op("ReduceSum", g.op("Mul", rows, rows), g.ints(1), keepdims=1)
    return g.op("Div", rows, g.op("Sqrt", g.op("Max", square, g.scalar(_SMALLEST_SQUARE))))
