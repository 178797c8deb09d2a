"""roiline takes a trained R-CNN checkpoint to proposals and detections over a whole dataset, on every device of the machine."""

from __future__ import annotations

__version__ = "0.1.0"
