"""Builds a model with TensorRT for RTX, in a process of its own: two TensorRTs cannot be loaded into one.

Called with the model, a file of shapes (smallest, optimal and largest of each input), and the engine to write.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import onnx
import tensorrt_rtx as trt

from roiline.engines.tensorrt.builder import add_profile, configure, parse_model
from roiline.engines.tensorrt.profiles import Profile
from roiline.engines.tensorrt.runtime import make_logger
from roiline.engines.tensorrt.settings import BuildSettings


def main(model: Path, shapes: Path, out: Path) -> None:
    profile = Profile({name: tuple(map(tuple, three)) for name, three in json.loads(shapes.read_text()).items()})
    logger = make_logger(trt)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parse_model(trt, network, logger, onnx.load(model))
    config = builder.create_builder_config()
    configure(trt, config, BuildSettings(workspace_mb=512))
    add_profile(builder, config, profile)
    serialized = builder.build_serialized_network(network, config)
    if serialized is None:
        sys.exit("\n".join(logger.errors))
    out.write_bytes(bytes(serialized))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
