"""The demo behind `make demo`: from the shipped checkpoint to drawn detections, through the commands that people use.

Every step is a `roiline` command, printed before it runs; at the end it says what came out, how fast, and where the files are.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

DIGITS = Path(__file__).resolve().parent / "digits"


def run_command(roiline: str, *arguments: str) -> None:
    """Prints and runs one command; a failing one ends the demo with its exit code."""
    command = [roiline, *arguments]
    print("$ " + shlex.join(["roiline", *arguments]), flush=True)
    code = subprocess.run([*command, "--quiet"], stdout=subprocess.DEVNULL, check=False).returncode
    if code:
        sys.exit(code)


def main() -> None:
    """Runs export, proposals, detect, evaluate and draw on two CPU workers."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--roiline", default="roiline", help="the command to run")
    parser.add_argument("--out", type=Path, default=Path("demo-out"), help="folder of everything the demo makes")
    options = parser.parse_args()
    here = Path.cwd()
    digits = DIGITS.relative_to(here) if DIGITS.is_relative_to(here) else DIGITS
    out: Path = options.out
    model, data = str(out / "digits.onnx"), [str(digits / "annotations.json"), "--images", str(digits / "pictures")]
    workers = ["--cpu-workers", "2", "--fresh"]

    def roiline(*arguments: str) -> None:
        run_command(options.roiline, *arguments)

    roiline(
        *("export", "detectron", "--cfg", str(digits / "digits.yaml"), "--weights", str(digits / "digits.pkl")),
        *("--classes", str(digits / "classes.txt"), "-o", model),
    )
    roiline("proposals", model, *data, "-o", str(out / "proposals"), *workers)
    roiline("detect", model, *data, "-o", str(out / "detections"), *workers)
    roiline("evaluate", str(out / "proposals"), *data)
    roiline("evaluate", str(out / "detections"), *data)
    roiline("draw", str(out / "detections"), *data, "-o", str(out / "drawn"))
    print(describe_outcome(out))


def describe_outcome(out: Path) -> str:
    """Returns the closing lines: counts, accuracy, speed and places, from the files that the commands left."""
    timing = {name: json.loads((out / name / "timing.json").read_text()) for name in ("proposals", "detections")}
    metrics = {name: json.loads((out / name / "metrics.json").read_text())["annotations"] for name in timing}
    boxes = json.loads((out / "detections" / "bbox_results.json").read_text())
    drawn = len(list((out / "drawn").glob("*.jpg")))
    images = timing["detections"]["images"]
    rate = {name: entry["images_per_s"] for name, entry in timing.items()}
    recall, box = metrics["proposals"]["box_proposal"], metrics["detections"]["box"]
    return "\n".join(
        [
            "",
            f"proposals   {images} pictures, {rate['proposals']:.1f} images/s, AR@100 {recall['AR@100']:.3f}",
            f"detections  {len(boxes)} boxes, {rate['detections']:.1f} images/s, AP {box['AP']:.3f}, AP50 {box['AP50']:.3f}",
            f"results     {out / 'proposals' / 'rpn_proposals.pkl'}, {out / 'detections' / 'bbox_results.json'}",
            f"pictures    {drawn} in {out / 'drawn'}",
        ]
    )


if __name__ == "__main__":
    main()
