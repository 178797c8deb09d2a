"""PrepareImage: a decoded picture into network input on the device. It stands before a model, not in one, and is launched directly.

Inputs: `picture` (H, W, 3) uint8 as it was decoded; `values` (3, 256) float32, the network's value of every byte for each of the network's
channels; `rows` (h,) int32 and `row_shares` (h,) float32, for every row of the resized picture the first of the two rows between which
it lies and the share of the second; `columns` (w,) and `column_shares` (w,) likewise.
Output: `pixels` (3, padded_height, padded_width) float32: the resized picture in the upper left, zeros elsewhere.

`swap_channels` reads the picture's channels in reverse (BGR bytes, RGB network). Interpolation is across first and then down, by a fused
step between two values, as OpenCV's; with `rows_first` it is down first and then across, by weighted sums, as PyTorch's. Resizing
that is not bilinear between two pixels (detectron2's, which averages 8-bit values) has no kernel.
"""

from __future__ import annotations

from roiline.ops.extents import Size
from roiline.ops.kernels import Kernel, KernelInput, KernelNode, KernelOutput


def _shape(node: KernelNode) -> tuple[Size, ...]:
    return (3, node["padded_height"], node["padded_width"])


PREPARE_IMAGE = Kernel(
    name="PrepareImage",
    source="image_preparation/image_preparation.cuh",
    function="prepare_image",
    inputs={
        "picture": KernelInput(("uint8",), 3),
        "values": KernelInput(("float32",), 2),
        "rows": KernelInput(("int32",), 1),
        "row_shares": KernelInput(("float32",), 1),
        "columns": KernelInput(("int32",), 1),
        "column_shares": KernelInput(("float32",), 1),
    },
    outputs={"pixels": KernelOutput("float32", _shape)},
    attributes={"padded_height": None, "padded_width": None, "swap_channels": 0, "rows_first": 0},
    items=lambda node: 3 * node["padded_height"] * node["padded_width"],
    arguments=lambda node: {
        "picture_height": node.dim("picture", 0),
        "picture_width": node.dim("picture", 1),
        "height": node.dim("rows", 0),
        "width": node.dim("columns", 0),
        "padded_height": node["padded_height"],
        "padded_width": node["padded_width"],
        "swap_channels": node["swap_channels"],
        "rows_first": node["rows_first"],
    },
)
