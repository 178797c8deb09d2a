"""The one CUDA layer: a driver behind a small protocol (cuda-bindings or pycuda), and the resources that a context owns.

Importing it touches no driver. `open_driver` is the only door, and says plainly where there is no NVIDIA driver or no GPU.
"""
