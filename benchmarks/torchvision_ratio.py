"""How fast an exported torchvision model is in ONNX Runtime beside torchvision's own eager model, on the CPU with equal threads.

Both get the network input's picture and give final detections: eager from the float picture on (its own resizing included), ours from
preparation on. They take turns, so that a busy machine slows both. The weights are the constructor's random ones, scaled nowhere: the
RPN gives as many proposals as it may, so the heads have their full load. Prints a table, and writes JSON where `--json` says.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import onnxruntime
import torch
import torchvision

from roiline.core.spec import ImageRules
from roiline.engines.model_file import read_spec
from roiline.export.torchvision.exporter import export_torchvision
from roiline.export.torchvision.options import MODELS
from roiline.infer.preparation import prepare_picture, stack_batch


def main() -> None:
    arguments = _parse_arguments()
    torch.set_num_threads(arguments.threads)
    rows = [_measure_model(arch, arguments) for arch in arguments.arch or MODELS]
    print(f"{'model':40s} {'eager ms':>9s} {'ours ms':>9s} {'ratio':>6s} {'export s':>9s}")
    for row in rows:
        print(
            f"{row['arch']:40s} {row['eager_ms']:9.1f} {row['ours_ms']:9.1f} {row['ratio']:6.2f} {row['export_s']:9.1f}"
        )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pictures", nargs="+", type=Path, help="pictures to run")
    parser.add_argument("--arch", action="append", choices=list(MODELS), help="a model (default: all)")
    parser.add_argument("--min-size", type=int, default=800)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    return parser.parse_args()


def _measure_model(arch: str, arguments: argparse.Namespace) -> dict[str, float | str]:
    torch.manual_seed(0)
    build = getattr(torchvision.models.detection, arch)
    model = build(weights=None, weights_backbone=None, min_size=arguments.min_size).eval()
    with tempfile.TemporaryDirectory() as folder:
        weights, out, cfg = (Path(folder) / name for name in ("weights.pth", "model.onnx", "options.yaml"))
        torch.save(model.state_dict(), weights)
        cfg.write_text(f"min_size: {arguments.min_size}\n")
        start = time.perf_counter()
        export_torchvision(arch, weights, out, cfg=cfg)
        export_s = time.perf_counter() - start
        rules = read_spec(out).images
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        session = onnxruntime.InferenceSession(out, options, providers=["CPUExecutionProvider"])
    eager_s, ours_s = [], []
    for path in arguments.pictures:
        picture = cv2.imread(str(path))
        runs = (_eager_run(model, picture), _our_run(session, rules, picture))
        for run in runs:
            run()
        for _ in range(arguments.repeats):
            for run, seconds in zip(runs, (eager_s, ours_s), strict=True):
                start = time.perf_counter()
                run()
                seconds.append(time.perf_counter() - start)
    eager_ms, ours_ms = (1000 * statistics.median(seconds) for seconds in (eager_s, ours_s))
    return {"arch": arch, "eager_ms": eager_ms, "ours_ms": ours_ms, "ratio": eager_ms / ours_ms, "export_s": export_s}


def _eager_run(model: torch.nn.Module, picture: np.ndarray) -> Callable[[], object]:
    tensor = torch.from_numpy(picture[:, :, ::-1].copy()).permute(2, 0, 1).float() / 255

    def run() -> object:
        with torch.inference_mode():
            return model([tensor])

    return run


def _our_run(session: onnxruntime.InferenceSession, rules: ImageRules, picture: np.ndarray) -> Callable[[], object]:
    def run() -> object:
        batch = stack_batch([prepare_picture(picture, rules)], [0])
        feeds = {"data": batch.pixels, "im_info": batch.im_info, "im_size": batch.sizes}
        return session.run(None, feeds)

    return run


if __name__ == "__main__":
    main()
