"""Classification of whole pictures: the mean over a body's cells, a perceptron, and class probabilities."""

from __future__ import annotations

from roiline.export.architecture import ClassificationHead
from roiline.export.graph import GraphWriter
from roiline.export.layers import Feature, write_fc, write_mean, write_relu

_PURPOSE = "classification head"


def write_classification(g: GraphWriter, head: ClassificationHead, feature: Feature) -> str:
    """Writes fc6, fc7, .. and the probabilities (N, K) of a feature map (N, channels, h, w)."""
    x = write_mean(g, feature, "final_avg")
    for index, width in enumerate(head.widths, start=6):
        blob = f"fc{index}"
        x = write_relu(
            g, write_fc(g, x, blob, purpose=_PURPOSE, out=width, config_key="CLASSIFICATION.MLP_HEADS_DIM"), blob
        )
    logits = write_fc(
        g, x, "logits", purpose=_PURPOSE, out=head.num_classes, name="logits", config_key="MODEL.NUM_CLASSES"
    )
    return g.op("Softmax", logits.name, name="cls_prob", axis=1)
