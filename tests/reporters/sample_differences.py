"""Differences of traces and of folders that have every field that can hold a text."""

from __future__ import annotations

from msgspec.structs import replace

from attnshape.model.difference import (
    ArgumentChange,
    BehaviourChange,
    BehaviourDifference,
    BehaviourUnknown,
    Difference,
    FileDifference,
    FolderDifference,
    NotCompared,
    OutlineLoop,
    OutlineResult,
    OutlineStep,
    OutlineTensor,
    OutputChange,
    Rename,
    ResultChange,
    Side,
    SizeChange,
    StepChange,
    Totals,
)
from attnshape.model.trace import Argument, Reference


def every_text() -> Difference:
    """A step that changed, one that was added and one that was removed, each with every text."""
    text = "x"
    reference = Reference(input=text, parameter=text)
    old = OutlineTensor(
        name=text,
        dtype=text,
        signature=text,
        shape=(2, 3),
        stride=(3, 1),
        stride_formulas=(text, text),
        contiguous=True,
        layout=text,
        kind="view",
        of=reference,
    )
    new = replace(old, shape=(2, 4), stride=(4, 1))
    changed = OutputChange(old, new, ("signature", "shape", "stride", "storage", "dtype"))
    step = OutlineStep(
        index=1,
        expression=text,
        operation=text,
        uses=(reference,),
        arguments=(Argument(text, text, text),),
        loops=(OutlineLoop(text, 3),),
        outputs=(old,),
    )
    others = replace(step, index=2, outputs=(old, new))
    changes = (
        StepChange(
            old=step,
            new=replace(step, outputs=(new,)),
            changed=("operation", "arguments", "uses", "loops"),
            arguments=(ArgumentChange(text, text, text), ArgumentChange(text, None, text)),
            outputs=(changed,),
            kinds=("signature", "steps"),
        ),
        StepChange(old=None, new=others, kinds=("steps",)),
        StepChange(old=others, new=None, kinds=("steps",)),
    )
    given = replace(step, index=0, operation="input")
    return Difference(
        old=Side(text, Totals(1, 2, 3), {text: 2}, text),
        new=Side(text, Totals(2, 3, 4), {text: 3}, text),
        kinds=("signature", "steps"),
        sizes=(SizeChange(text, 2, 3),),
        renamed=(Rename(text, text),),
        inputs=(StepChange(old=given, new=None, kinds=("steps",)),),
        steps=changes,
        results=(
            ResultChange(OutlineResult(text, reference), None),
            ResultChange(OutlineResult(text, reference), OutlineResult(text, Reference(step=1))),
        ),
        behaviour=BehaviourDifference(
            sizes={text: 2},
            changed=(
                BehaviourChange(topic="scale", old=(text,), new=(text, text)),
                BehaviourChange(topic="heads", old=(text,), new=()),
            ),
            same=("tokens",),
            unknown=(
                BehaviourUnknown(topic="inputs", old=(text,), new=()),
                BehaviourUnknown(topic="results", old=(text,), new=(text,)),
            ),
            not_compared=text,
        ),
    )


def folders() -> FolderDifference:
    """Files that differ, files that don't, files of one side, and files that can't be compared."""
    text = "x"
    same = Difference(old=every_text().old, new=every_text().old)
    return FolderDifference(
        old=text,
        new=text,
        files=(FileDifference(text, every_text()), FileDifference(text, same)),
        only_old=(text, text),
        only_new=(text,),
        not_compared=(NotCompared(text, text),),
    )
