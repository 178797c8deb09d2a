"""The operators that R-CNNs need beyond standard ONNX, one folder each."""
