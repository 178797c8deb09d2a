"""What an export costs: seconds and peak memory for a full R-50-FPN Faster R-CNN whose weights file also holds the momentum of training.

The weights are random but of the published model's shapes (41 M parameters, 330 MB on disk with momentum). The export runs in a process of
its own, so that its peak memory is its own.
"""

from __future__ import annotations

import pickle
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

CONFIG = """
MODEL:
  TYPE: generalized_rcnn
  CONV_BODY: FPN.add_fpn_ResNet50_conv5_body
  NUM_CLASSES: 81
  FASTER_RCNN: True
FPN: {FPN_ON: True, MULTILEVEL_ROIS: True, MULTILEVEL_RPN: True}
FAST_RCNN:
  ROI_BOX_HEAD: fast_rcnn_heads.add_roi_2mlp_head
  ROI_XFORM_METHOD: RoIAlign
  ROI_XFORM_RESOLUTION: 7
  ROI_XFORM_SAMPLING_RATIO: 2
TEST: {SCALE: 800, MAX_SIZE: 1333, NMS: 0.5, RPN_PRE_NMS_TOP_N: 1000, RPN_POST_NMS_TOP_N: 1000}
"""

CHILD = """
import resource, sys, time
began = time.perf_counter()
from pathlib import Path
from roiline.export.detectron.exporter import export_detectron
export_detectron(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
loaded = [name for name in ("onnxruntime", "torch", "cv2", "tensorrt") if name in sys.modules]
assert not loaded, loaded
print(time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def list_shapes() -> dict[str, tuple[int, ...]]:
    """Returns the published model's blobs: name to shape."""
    shapes: dict[str, tuple[int, ...]] = {"conv1_w": (64, 3, 7, 7)}

    def add_affine(name: str, channels: int) -> None:
        shapes[f"{name}_s"] = shapes[f"{name}_b"] = (channels,)

    add_affine("res_conv1_bn", 64)
    width = 64
    for stage, count in zip((2, 3, 4, 5), (3, 4, 6, 3), strict=True):
        inner, outer = 64 * 2 ** (stage - 2), 256 * 2 ** (stage - 2)
        for block in range(count):
            prefix = f"res{stage}_{block}_branch"
            parts = {"2a": (inner, width, 1, 1), "2b": (inner, inner, 3, 3), "2c": (outer, inner, 1, 1)}
            parts |= {"1": (outer, width, 1, 1)} if block == 0 else {}
            for part, shape in parts.items():
                shapes[f"{prefix}{part}_w"] = shape
                add_affine(f"{prefix}{part}_bn", shape[0])
            width = outer
    for blob, channels in {"res5_2": 2048, "res4_5": 1024, "res3_3": 512, "res2_2": 256}.items():
        inner_name = f"fpn_inner_{blob}_sum" + ("" if blob == "res5_2" else "_lateral")
        shapes |= {f"{inner_name}_w": (256, channels, 1, 1), f"{inner_name}_b": (256,)}
        shapes |= {f"fpn_{blob}_sum_w": (256, 256, 3, 3), f"fpn_{blob}_sum_b": (256,)}
    heads = {
        "conv_rpn_fpn2": (256, 256, 3, 3),
        "rpn_cls_logits_fpn2": (3, 256, 1, 1),
        "rpn_bbox_pred_fpn2": (12, 256, 1, 1),
        "fc6": (1024, 12544),
        "fc7": (1024, 1024),
        "cls_score": (81, 1024),
        "bbox_pred": (324, 1024),
    }
    for name, shape in heads.items():
        shapes |= {f"{name}_w": shape, f"{name}_b": shape[:1]}
    return shapes


def write_checkpoint(folder: Path) -> None:
    """Writes cfg.yaml and w.pkl; arrays lie in the file as raw bytes, as in files of Python 2."""
    rng = np.random.default_rng(0)
    (folder / "cfg.yaml").write_text(CONFIG)
    blobs = {blob: rng.standard_normal(shape, np.float32) * np.float32(0.01) for blob, shape in list_shapes().items()}
    momentum = {f"{blob}_momentum": np.zeros_like(array) for blob, array in blobs.items()}
    with (folder / "w.pkl").open("wb") as stream:
        pickle.dump({"blobs": blobs | momentum, "cfg": CONFIG}, stream, protocol=4)


def main() -> None:
    """Exports five times and prints the medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # A process inherits the peak memory of the one that starts it, so the checkpoint is made in a third.
        subprocess.run([sys.executable, __file__, str(folder)], check=True)
        rounds = []
        for _ in range(5):
            command = [sys.executable, "-c", CHILD, *(str(folder / part) for part in ("cfg.yaml", "w.pkl", "m.onnx"))]
            answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            rounds.append([float(word) for word in answer.split()])
        sizes = [(folder / part).stat().st_size / 2**20 for part in ("w.pkl", "m.onnx")]
    seconds, memory = (statistics.median(column) for column in zip(*rounds, strict=True))
    print(
        f"weights {sizes[0]:.0f} MiB, model {sizes[1]:.0f} MiB: {seconds:.1f} s, peak memory {memory:.0f} MiB (medians of 5)"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        write_checkpoint(Path(sys.argv[1]))
    else:
        main()
