"""A checkpoint and its configuration made one ONNX file that describes itself."""
