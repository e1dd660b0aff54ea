"""Damaged, foreign and hostile inputs for everything that reads: made here, judged here, for hypothesis and atheris."""

from fuzzing.command_line import COMMANDS
from fuzzing.data_files import DATA
from fuzzing.decisions import Decisions
from fuzzing.experiment_files import EXPERIMENTS
from fuzzing.federated_files import FEDERATED
from fuzzing.judging import Failure, Outcome, judge, judge_files
from fuzzing.run_files import RUNS
from fuzzing.target import Files, Target

__all__ = ["Decisions", "Failure", "Files", "Outcome", "TARGETS", "Target", "judge", "judge_files"]

# Every format that is read, with valid files small enough to be changed many times a second.
TARGETS: dict[str, Target] = {target.name: target for target in (*RUNS, *EXPERIMENTS, *DATA, *FEDERATED, *COMMANDS)}
