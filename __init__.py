"""roiline takes a trained R-CNN checkpoint to proposals and detections over a whole dataset, on every device of the machine.

`open` gives a model that answers single pictures, `run` is the dataset run behind the commands, `export_detectron` makes a model file.
Importing this loads nothing heavy: every name is fetched when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roiline.core.errors import RoilineError
    from roiline.core.spec import ModelSpec
    from roiline.core.structures import Classification, Detections, Proposals
    from roiline.export.detectron.exporter import export_detectron
    from roiline.infer.python_api import OpenedModel, run
    from roiline.infer.python_api import open_model as open  # noqa: A004  # `roiline.open` reads like the built-in that it resembles
    from roiline.infer.request import RunOverrides, RunSummary

__version__ = "0.1.0"

_HOMES = {
    "Classification": "roiline.core.structures:Classification",
    "Detections": "roiline.core.structures:Detections",
    "ModelSpec": "roiline.core.spec:ModelSpec",
    "OpenedModel": "roiline.infer.python_api:OpenedModel",
    "Proposals": "roiline.core.structures:Proposals",
    "RoilineError": "roiline.core.errors:RoilineError",
    "RunOverrides": "roiline.infer.request:RunOverrides",
    "RunSummary": "roiline.infer.request:RunSummary",
    "export_detectron": "roiline.export.detectron.exporter:export_detectron",
    "open": "roiline.infer.python_api:open_model",
    "run": "roiline.infer.python_api:run",
}

__all__ = [
    "Classification",
    "Detections",
    "ModelSpec",
    "OpenedModel",
    "Proposals",
    "RoilineError",
    "RunOverrides",
    "RunSummary",
    "export_detectron",
    "open",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'roiline' has no attribute {name!r}")
    module, attribute = _HOMES[name].split(":")
    return getattr(importlib.import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
