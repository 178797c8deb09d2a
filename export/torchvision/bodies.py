"""torchvision's bodies and pyramids: their structure from the shapes of a state dict, their blobs by our names."""

from __future__ import annotations

from roiline.core.errors import ExportError, WeightError
from roiline.export.architecture import InvertedResidual, MobileNet, Pyramid, ResNet
from roiline.export.layers import GroupNorm
from roiline.export.torchvision.options import Options
from roiline.export.torchvision.state import Norm, StateReader

BODY = "backbone.body"
FPN = "backbone.fpn"
TOP = 5
_GROUP_EPSILON = 1e-5
_STAGES = (1, 2, 3, 4)

# What the weights do not show of mobilenet_v3_large's blocks: which ones stride, and from which one on the activation is hard swish.
_MOBILE_STRIDES = {2: 2, 4: 2, 7: 2, 13: 2}
_FIRST_HARD_SWISH = 7


def group_norm(norm: Norm | None, options: Options) -> GroupNorm | None:
    """Returns group normalisation as a layer has it, None where a batch's was folded or there is none."""
    return GroupNorm(options["norm_groups"], _GROUP_EPSILON) if norm == "group" else None


# --- ResNet ----------------------------------------------------------------------------------------------------------


def read_resnet(state: StateReader, options: Options) -> ResNet:
    """Reads a ResNet, of any depth and width, of bottlenecks or of basic blocks."""
    blocks = tuple(state.count(f"{BODY}.layer{stage}.", ".") for stage in _STAGES)
    if 0 in blocks:
        missing = ", ".join(f"{BODY}.layer{stage}" for stage, count in zip(_STAGES, blocks, strict=True) if not count)
        raise WeightError(f"{state.source}: not the weights of {options.arch}: there is no {missing}")
    basic = not state.has(f"{BODY}.layer1.0.conv3.")
    stem = state.add_affine("conv1", f"{BODY}.conv1", f"{BODY}.bn1", "res_conv1_bn")
    for stage, count in zip(_STAGES, blocks, strict=True):
        for index in range(count):
            _read_block(state, f"{BODY}.layer{stage}.{index}", f"res{stage + 1}_{index}", basic=basic)
    norm = group_norm(stem, options)
    first, second, third, fourth = blocks
    return ResNet(
        blocks=(first, second, third, fourth),
        groups=1 if basic else _count_groups(state),
        stride_in_1x1=False,
        stem_norm=norm,
        block_norm=norm,
        shortcut_norm=norm,
        basic=basic,
        res2_projected=state.has(f"{BODY}.layer1.0.downsample."),
    )


def _read_block(state: StateReader, key: str, blob: str, *, basic: bool) -> None:
    for number, letter in enumerate("ab" if basic else "abc", 1):
        branch = f"{blob}_branch2{letter}"
        state.add_affine(branch, f"{key}.conv{number}", f"{key}.bn{number}", f"{branch}_bn")
    if state.has(f"{key}.downsample."):
        branch = f"{blob}_branch1"
        state.add_affine(branch, f"{key}.downsample.0", f"{key}.downsample.1", f"{branch}_bn")


def _count_groups(state: StateReader) -> int:
    """Returns the groups of the 3x3 convolutions: the channels that come in over those that a filter sees."""
    reduced, middle = (state.shape(f"{BODY}.layer1.0.conv{number}.weight") for number in (1, 2))
    return reduced[0] // middle[1] if len(reduced) == len(middle) == 4 and middle[1] else 1


# --- MobileNet -------------------------------------------------------------------------------------------------------


def read_mobilenet(state: StateReader) -> MobileNet:
    """Reads mobilenet_v3_large, of any width."""
    state.add_unit("features0", f"{BODY}.0.0", f"{BODY}.0.1")
    last = state.count(f"{BODY}.", ".") - 1
    blocks = tuple(_read_inverted_residual(state, number) for number in range(1, last))
    state.add_unit(f"features{last}", f"{BODY}.{last}.0", f"{BODY}.{last}.1")
    return MobileNet(blocks, stages=(max(_MOBILE_STRIDES), last))


def _read_inverted_residual(state: StateReader, number: int) -> InvertedResidual:
    """Reads one block; its layers are numbered in a row, whichever of them are there."""
    key, blob = f"{BODY}.{number}.block", f"features{number}"
    squeezed = next((place for place in range(4) if state.has(f"{key}.{place}.fc1.")), None)
    count = state.count(f"{key}.", ".")
    depthwise = (count - 1 if squeezed is None else squeezed) - 1
    if depthwise == 1:
        state.add_unit(f"{blob}_expand", f"{key}.0.0", f"{key}.0.1")
    state.add_unit(f"{blob}_depthwise", f"{key}.{depthwise}.0", f"{key}.{depthwise}.1")
    if squeezed is not None:
        state.add_layer(f"{blob}_squeeze", f"{key}.{squeezed}.fc1")
        state.add_layer(f"{blob}_excite", f"{key}.{squeezed}.fc2")
    state.add_unit(f"{blob}_project", f"{key}.{count - 1}.0", f"{key}.{count - 1}.1")
    stride = _MOBILE_STRIDES.get(number, 1)
    incoming, outgoing = state.shape(f"{key}.0.0.weight"), state.shape(f"{key}.{count - 1}.0.weight")
    channels_in = (incoming[1] if depthwise == 1 else incoming[0]) if len(incoming) == 4 else 0
    kernel = state.shape(f"{key}.{depthwise}.0.weight")
    return InvertedResidual(
        kernel=kernel[-1] if kernel else 3,
        stride=stride,
        expanded=depthwise == 1,
        squeezed=squeezed is not None,
        hard_swish=number >= _FIRST_HARD_SWISH,
        residual=stride == 1 and outgoing[:1] == (channels_in,),
    )


# --- pyramids --------------------------------------------------------------------------------------------------------


def read_pyramid(state: StateReader, options: Options, body: ResNet | MobileNet) -> Pyramid:
    """Reads the pyramid over a body's last stages.

    Raises:
        ExportError: it does not begin at the body's last stage.
    """
    count = state.count(f"{FPN}.inner_blocks.", ".")
    first = TOP - count + 1
    if isinstance(body, ResNet):
        _check_stages(state, options, body, first)
    norms = set()
    for index in range(count):
        name = _stage_name(body, first + index)
        lateral = f"fpn_inner_{name}" + ("_lateral" if index < count - 1 else "")
        norms.add(state.add_unit(lateral, f"{FPN}.inner_blocks.{index}.0", f"{FPN}.inner_blocks.{index}.1"))
        norms.add(state.add_unit(f"fpn_{name}", f"{FPN}.layer_blocks.{index}.0", f"{FPN}.layer_blocks.{index}.1"))
    channels = (*state.shape(f"{FPN}.layer_blocks.0.0.weight"), 0)[0]
    convs = state.has(f"{FPN}.extra_blocks.p6.")
    if convs:
        state.add_layer("fpn_6", f"{FPN}.extra_blocks.p6")
        state.add_layer("fpn_7", f"{FPN}.extra_blocks.p7")
    return Pyramid(
        min_level=first,
        max_level=TOP + (2 if convs else 1),
        channels=channels or None,
        norm=group_norm("group" if "group" in norms else None, options),
        extra_convs=convs,
        extra_of_pyramid=state.shape(f"{FPN}.extra_blocks.p6.weight")[1:2] == (channels,),
        upsampled=isinstance(body, ResNet),
    )


def _stage_name(body: ResNet | MobileNet, level: int) -> str:
    if isinstance(body, MobileNet):
        return f"features{body.stages[level - TOP - 1]}"
    return f"res{level}_{body.blocks[level - 2] - 1}_sum"


def _check_stages(state: StateReader, options: Options, body: ResNet, first: int) -> None:
    """Sees that the pyramid stands on the stages from `first` to the last: their widths say which stage a lateral layer is for."""
    last_conv = "conv2" if body.basic else "conv3"
    for index, level in enumerate(range(first, TOP + 1)):
        width = state.shape(f"{BODY}.layer{level - 1}.0.{last_conv}.weight")[:1]
        lateral = state.shape(f"{FPN}.inner_blocks.{index}.0.weight")[1:2]
        if lateral and width != lateral:
            raise ExportError(
                f"{state.source}: {FPN}.inner_blocks.{index} takes {lateral[0]} channels, layer{level - 1} of the body has "
                f"{width[0] if width else 'none'}: {options.arch} is exported with a pyramid on consecutive stages up to layer4 only "
                "(returned_layers [1, 2, 3, 4], [2, 3, 4], ..)"
            )
