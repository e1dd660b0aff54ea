"""Every format that is read, with valid files small enough to be changed many times a second."""

from fuzzing.command_line import COMMANDS
from fuzzing.data_files import DATA
from fuzzing.experiment_files import EXPERIMENTS
from fuzzing.federated_files import FEDERATED
from fuzzing.run_files import RUNS
from fuzzing.target import Target

TARGETS: dict[str, Target] = {
    target.name: target for target in (*RUNS, *EXPERIMENTS, *DATA, *FEDERATED, *COMMANDS)
}
