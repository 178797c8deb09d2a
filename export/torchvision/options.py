"""What a torchvision state dict cannot tell: the arguments of the model's constructor, by torchvision's own names.

A YAML file holds those that differ from the defaults of the named model. Modules that are arguments (anchor generators, RoI pools) are
given as mappings of their own arguments. Arguments of training alone are known and passed over. Two names are ours, for what torchvision
decides elsewhere: `norm_eps`, the epsilon of batch normalisation, and `norm_groups`, the groups of group normalisation.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from roiline.core.errors import ConfigError, UsageError
from roiline.core.files import YAML_LIMIT, read_input
from roiline.core.yamls import dump_yaml, load_yaml

Values: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Model:
    """Is one of torchvision's constructors: the parts that its model has, and the defaults that are its own."""

    body: Literal["resnet", "mobilenet"] = "resnet"
    one_stage: bool = False
    mask: bool = False
    keypoints: bool = False
    defaults: Values = field(default_factory=dict)


_MOBILE_ANCHORS = {"sizes": ((32, 64, 128, 256, 512),) * 3, "aspect_ratios": ((0.5, 1.0, 2.0),) * 3}
_MOBILE_320: Values = {
    "min_size": 320,
    "max_size": 640,
    "rpn_pre_nms_top_n_test": 150,
    "rpn_post_nms_top_n_test": 150,
}
_MOBILE: Values = {"rpn_anchor_generator": _MOBILE_ANCHORS, "rpn_score_thresh": 0.05}

MODELS: Mapping[str, Model] = {
    "fasterrcnn_resnet50_fpn": Model(),
    "fasterrcnn_resnet50_fpn_v2": Model(),
    "fasterrcnn_mobilenet_v3_large_fpn": Model("mobilenet", defaults=_MOBILE),
    "fasterrcnn_mobilenet_v3_large_320_fpn": Model("mobilenet", defaults={**_MOBILE, **_MOBILE_320}),
    "maskrcnn_resnet50_fpn": Model(mask=True),
    "maskrcnn_resnet50_fpn_v2": Model(mask=True),
    "keypointrcnn_resnet50_fpn": Model(keypoints=True),
    "retinanet_resnet50_fpn": Model(one_stage=True),
    "retinanet_resnet50_fpn_v2": Model(one_stage=True),
}
"""The models by torchvision's names. What tells the two versions of a model apart is all in the weights."""

_RATIOS = (0.5, 1.0, 2.0)
_SIZES = (32, 64, 128, 256, 512)
_POOL_LEVELS = ("0", "1", "2", "3")


def _pool(output_size: int) -> Values:
    return {
        "featmap_names": _POOL_LEVELS,
        "output_size": output_size,
        "sampling_ratio": 2,
        "canonical_scale": 224,
        "canonical_level": 4,
    }


_COMMON: Values = {
    "num_classes": None,
    "min_size": 800,
    "max_size": 1333,
    "image_mean": (0.485, 0.456, 0.406),
    "image_std": (0.229, 0.224, 0.225),
    "size_divisible": 32,
    "fixed_size": None,
    "norm_eps": None,
    "norm_groups": 32,
}
_TWO_STAGE: Values = {
    "rpn_anchor_generator": {"sizes": tuple((size,) for size in _SIZES), "aspect_ratios": (_RATIOS,) * 5},
    "rpn_pre_nms_top_n_test": 1000,
    "rpn_post_nms_top_n_test": 1000,
    "rpn_nms_thresh": 0.7,
    "rpn_score_thresh": 0.0,
    "box_roi_pool": _pool(7),
    "box_score_thresh": 0.05,
    "box_nms_thresh": 0.5,
    "box_detections_per_img": 100,
    "bbox_reg_weights": (10.0, 10.0, 5.0, 5.0),
}
_ONE_STAGE: Values = {
    "anchor_generator": {
        "sizes": tuple((size, int(size * 2 ** (1.0 / 3)), int(size * 2 ** (2.0 / 3))) for size in _SIZES),
        "aspect_ratios": (_RATIOS,) * 5,
    },
    "score_thresh": 0.05,
    "nms_thresh": 0.5,
    "detections_per_img": 300,
    "topk_candidates": 1000,
}
_MASK: Values = {"mask_roi_pool": _pool(14)}
_KEYPOINTS: Values = {"keypoint_roi_pool": _pool(14), "num_keypoints": None}

_TRAINING = frozenset(
    {
        "rpn_pre_nms_top_n_train",
        "rpn_post_nms_top_n_train",
        "rpn_fg_iou_thresh",
        "rpn_bg_iou_thresh",
        "rpn_batch_size_per_image",
        "rpn_positive_fraction",
        "box_fg_iou_thresh",
        "box_bg_iou_thresh",
        "box_batch_size_per_image",
        "box_positive_fraction",
        "fg_iou_thresh",
        "bg_iou_thresh",
        "proposal_matcher",
        "trainable_backbone_layers",
        "weights_backbone",
        "progress",
        "_skip_resize",
    }
)


@dataclass(frozen=True, slots=True)
class Options:
    """Holds every argument that inference depends on; `source` says where they come from."""

    arch: str
    model: Model
    values: Values
    source: str

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def yaml_text(self) -> str:
        """Returns all of them as YAML."""
        return dump_yaml({"arch": self.arch, **_listed(self.values)})


def load_options(arch: str, cfg: Path | None, *, num_classes: int | None = None) -> Options:
    """Returns a model's arguments: its defaults, and what a YAML file and the caller say instead.

    Raises:
        UsageError: there is no such model, or it is told two numbers of classes.
        ConfigError: the file cannot be read, or an argument is unknown or of another kind; all faults are listed.
    """
    if arch not in MODELS:
        raise UsageError(f"--arch {arch}: no such model; known: {', '.join(MODELS)}")
    model = MODELS[arch]
    values: dict[str, Any] = {**_COMMON, **(_ONE_STAGE if model.one_stage else _TWO_STAGE)}
    for own in (_MASK if model.mask else {}, _KEYPOINTS if model.keypoints else {}, model.defaults):
        values |= own
    given = {} if cfg is None else _read_file(cfg)
    _merge(values, given, str(cfg))
    if num_classes is not None and values["num_classes"] not in (None, num_classes):
        raise UsageError(f"--num-classes {num_classes}: {cfg} says num_classes {values['num_classes']}")
    values["num_classes"] = values["num_classes"] if num_classes is None else num_classes
    return Options(arch, model, values, arch if cfg is None else str(cfg))


def _read_file(cfg: Path) -> dict[str, Any]:
    tree = load_yaml(read_input(cfg, error=ConfigError, limit=YAML_LIMIT), source=str(cfg))
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{cfg}: expected a mapping of arguments, got a {type(tree).__name__}")
    return tree


def _merge(values: dict[str, Any], given: Mapping[str, Any], source: str) -> None:
    """Puts given arguments over the defaults."""
    faults = []
    for name, value in given.items():
        if name in _TRAINING:
            continue
        if name not in values:
            faults.append(_explain_unknown(name, values))
            continue
        try:
            values[name] = _read_value(name, value, values[name])
        except ValueError as error:
            faults.append(f"{name}: expected {error}, got {value!r}")
    if faults:
        listing = "\n  ".join(faults)
        raise ConfigError(f"{source}: these arguments cannot be used:\n  {listing}")


def _explain_unknown(name: object, values: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(str(name), list(values), n=1)
    hint = f" (is {near[0]} meant?)" if near else f"; known: {', '.join(values)}"
    return f"{name}: no argument of this model{hint}"


# --- values ----------------------------------------------------------------------------------------------------------


def _read_value(name: str, value: Any, default: Any) -> Any:
    """Returns an argument in its plain form; a ValueError says what was expected."""
    if value is None and default is not None and not isinstance(default, Mapping):
        return default  # torchvision's own way to say so
    if isinstance(default, Mapping):
        return _read_module(value, default)
    return _READERS[name](value)


def _read_module(value: Any, default: Values) -> Values:
    if value is None:
        return default
    if not isinstance(value, Mapping) or not set(value) <= set(default):
        raise ValueError(f"a mapping with {', '.join(default)}")
    chosen = {**default, **value}
    return _read_anchors(chosen) if "sizes" in chosen else _read_pool(chosen)


def _read_anchors(given: Values) -> Values:
    """Returns sizes and aspect ratios as one tuple a level; flat ones mean what torchvision takes them for."""
    sizes, ratios = given["sizes"], given["aspect_ratios"]
    expected = "sizes and aspect_ratios as numbers, or lists of numbers, a level"
    if not _is_list(sizes) or not _is_list(ratios) or not len(sizes) or not len(ratios):
        raise ValueError(expected)
    sizes = tuple(tuple(one) if _is_list(one) else (one,) for one in sizes)
    ratios = tuple(tuple(one) for one in ratios) if _is_list(ratios[0]) else (tuple(ratios),) * len(sizes)
    if len(ratios) != len(sizes) and len(set(ratios)) == 1:
        ratios = ratios[:1] * len(sizes)
    numbers = [number for one in (*sizes, *ratios) for number in one]
    if len(sizes) != len(ratios) or not numbers or not all(_is_number(number) and number > 0 for number in numbers):
        raise ValueError(f"{expected}, as many of one as of the other")
    return {"sizes": sizes, "aspect_ratios": ratios}


def _read_pool(given: Values) -> Values:
    size = given["output_size"]
    if _is_list(size):
        if len(set(size)) != 1:
            raise ValueError("a square output_size (others cannot be exported)")
        size = size[0]
    names = given["featmap_names"]
    if not _is_list(names) or not names:
        raise ValueError("featmap_names as a list")
    return {
        "featmap_names": tuple(str(name) for name in names),
        "output_size": _read_count(size),
        "sampling_ratio": _read_whole(given["sampling_ratio"]),
        "canonical_scale": _read_number(given["canonical_scale"]),
        "canonical_level": _read_whole(given["canonical_level"]),
    }


def _is_list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _read_whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("a whole number")
    return value


def _read_count(value: Any) -> int:
    if _read_whole(value) < 1:
        raise ValueError("a whole number of at least 1")
    return int(value)


def _read_number(value: Any) -> float:
    if not _is_number(value):
        raise ValueError("a number")
    return float(value)


def _read_sizes(value: Any) -> int:
    """Returns the size that inference takes: the last of several."""
    return _read_count(value[-1] if _is_list(value) and value else value)


def _read_numbers(count: int) -> Callable[[Any], tuple[float, ...]]:
    def read(value: Any) -> tuple[float, ...]:
        if not _is_list(value) or len(value) != count:
            raise ValueError(f"{count} numbers")
        return tuple(_read_number(number) for number in value)

    return read


def _read_fixed_size(value: Any) -> tuple[int, int] | None:
    if value is None:
        return None
    if not _is_list(value) or len(value) != 2:
        raise ValueError("a width and a height")
    return _read_count(value[0]), _read_count(value[1])


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


def _listed(value: Any) -> Any:
    """Returns tuples as lists, as YAML has them."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    return [_listed(item) for item in value] if isinstance(value, tuple) else value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "num_classes": _optional(_read_count),
    "num_keypoints": _optional(_read_count),
    "min_size": _read_sizes,
    "max_size": _read_count,
    "image_mean": _read_numbers(3),
    "image_std": _read_numbers(3),
    "size_divisible": _read_count,
    "fixed_size": _read_fixed_size,
    "norm_eps": _optional(_read_number),
    "norm_groups": _read_count,
    "bbox_reg_weights": _read_numbers(4),
    **dict.fromkeys(("rpn_pre_nms_top_n_test", "rpn_post_nms_top_n_test", "topk_candidates"), _read_count),
    **dict.fromkeys(("box_detections_per_img", "detections_per_img"), _read_count),
    **dict.fromkeys(("rpn_nms_thresh", "box_nms_thresh", "nms_thresh"), _read_number),
    **dict.fromkeys(("rpn_score_thresh", "box_score_thresh", "score_thresh"), _read_number),
}
