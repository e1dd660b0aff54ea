"""Damaged, foreign and hostile inputs for everything that reads: made here, judged here, for hypothesis and atheris."""

from fuzzing.decisions import Decisions
from fuzzing.judging import Failure, Outcome, judge, judge_files
from fuzzing.target import Files, Target
from fuzzing.targets import TARGETS

__all__ = ["Decisions", "Failure", "Files", "Outcome", "TARGETS", "Target", "judge", "judge_files"]
