"""The proposals of a run whose models make none of their own: which options fit, and what each image is given."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from roiline.core.errors import UsageError
from roiline.core.spec import GivenProposals, ModelSpec
from roiline.core.structures import Float32, RoidbEntry
from roiline.engines.model_file import read_spec
from roiline.infer.proposal_files import load_proposal_file, rank_proposal_file
from roiline.infer.request import RunRequest


def check_companions(request: RunRequest, spec: ModelSpec) -> GivenProposals | None:
    """Checks that the request's proposals and companion models fit its models; returns how given proposals are taken.

    None where every model makes its own.

    Raises:
        UsageError: proposals are missing, given twice, or taken by no model; or models are combined that do not detect.
        ModelError: a companion is no model of ours.
    """
    companions = request.companions
    given = companions.proposals_from is not None or any(data.proposals is not None for data in request.data)
    if request.task != "detections" and (companions.others or given):
        raise UsageError("models are combined, and given proposals, for detections only")
    for path, task in [
        (companions.proposals_from, "proposals"),
        *((other, "detections") for other in companions.others),
    ]:
        if path is not None and task not in (tasks := read_spec(path).tasks):
            raise UsageError(f"{path}: this model makes {' and '.join(tasks)}, not {task}")
    rules = [one.given_proposals for one in (spec, *map(read_spec, companions.others))]
    taking = next((rule for rule in rules if rule is not None), None)
    files = [data.proposals for data in request.data if data.proposals is not None]
    if files and companions.proposals_from is not None:
        raise UsageError("proposals come from a file or from a model: give --proposals or --proposals-from, not both")
    if taking is None and (files or companions.proposals_from is not None):
        raise UsageError(f"{request.model}: this model makes its own proposals; it takes none from outside")
    if taking is not None and companions.proposals_from is None and len(files) != len(request.data):
        raise UsageError(
            f"{request.model}: this model makes no proposals of its own: give a file of them for every dataset (--proposals FILE.pkl), "
            "or a model that makes them (--proposals-from MODEL)"
        )
    return taking


def load_given_proposals(path: Path, entries: Sequence[RoidbEntry], rule: GivenProposals) -> list[Float32 | None]:
    """Returns the proposals (R, 4) of every entry by the rules of Detectron's loader, or all of them by descending score.

    None where the size of the picture is not known, because its file cannot be read.

    Raises:
        DataError: the file is not a proposal file, or lacks or repeats a picture.
    """
    sized = [entry for entry in entries if entry.height > 0 and entry.width > 0]
    ranked = rule.network_frame
    loaded = iter(rank_proposal_file(path, sized) if ranked else load_proposal_file(path, sized, limit=rule.limit))
    return [next(loaded) if entry.height > 0 and entry.width > 0 else None for entry in entries]
