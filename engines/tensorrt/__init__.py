"""A model file built into a TensorRT engine, and the engine made to run."""
