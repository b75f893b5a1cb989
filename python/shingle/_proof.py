"""Proofs that a plan finishes, has no race and computes the result of its operator."""

import contextlib
import dataclasses
import json
import os
import tempfile
from typing import Iterator

from . import _program, errors
from ._plan import Plan


class ProofFailed(errors.Error):
    """The plan is wrong, or too large to prove. The text names rank, lane, step, rectangle or counter."""

    def __init__(self, work: str, rule: str, failure: str):
        super().__init__(f"{work}: {rule}: {failure}")
        self.rule = rule  #: rule that failed: "progress", "race", "content" and others; "size": too large to prove
        self.failure = failure


@dataclasses.dataclass(frozen=True)
class Proof:
    """What was proven of a plan, and how much there was to check."""

    work: str  #: the operator with its sizes
    world: int
    mechanism: str
    claims: tuple[str, ...]  #: what holds
    steps: int  #: steps and runs of tiles that were ordered, in all epochs
    epochs: int  #: runs of the plan that were unrolled
    accesses: int  #: rectangles of matrices that were checked
    skew: int | None  #: most epochs by which a rank may be ahead of another; None: any number
    us: float  #: time that the proof took

    def __str__(self) -> str:
        return f"proven: {self.mechanism} plan for {self.work}\n  " + "\n  ".join(self.claims)


def verify(plan: Plan | str | os.PathLike, *, context: bool = False) -> Proof:
    """Proves a plan.

    plan: a plan, or the file of one. context: prove also that calls of other plans may come before and after, on the
    same staging memory. Raises ProofFailed with the rule and the failure, InvalidArgument if the file holds no plan.
    """
    with plan_file(plan) as file:
        text = _program.run("verify", file, "--format=json", *_program.words({"context": context}), negative=True)
    proof = json.loads(text)[0]
    if not proof.pop("proven"):
        raise ProofFailed(f"{proof['mechanism']} plan for {proof['work']}", proof["rule"], proof["failure"])
    return Proof(**{**proof, "claims": tuple(proof["claims"])})


@contextlib.contextmanager
def plan_file(plan: Plan | str | os.PathLike) -> Iterator[str]:
    """Yields the file of a plan, which is written for the time of the block if it has none."""
    if not isinstance(plan, Plan):
        yield os.fspath(plan)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield plan.saved_in(folder)
