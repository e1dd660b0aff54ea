"""The command that writes a training to start from."""

import keyword
import sys
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import one_line_errors, say
from decrescendo.errors import InvalidValue

_PLAN = """dc.calibrate(
    dc.Budget(epsilon=2.0, delta=1e-5),
    dc.PoissonSampling(dataset_size=ROWS, expected_batch_size=256),
    steps=200,
    privacy=dc.curves.growing_mu(1.25),  # noise falls by a fifth
    clip=dc.curves.sensitivity_decay(1.0, 3.3),  # clip norm C_t, from 1 to 0.3
)"""


@one_line_errors
def new_command(name: Annotated[str, typer.Argument(help="Of the script: NAME.py, in this folder.")]) -> None:
    """Write a commented script that trains privately: data, model, loss, plan, training, statement.

    It runs unchanged, on digits that come with the library; edit it for your data.

    Example: decrescendo new patients
    """
    from decrescendo.training.tasks.script import DIGITS, script

    module = name.removesuffix(".py")
    path = Path(f"{module}.py")
    if not module.isidentifier() or keyword.iskeyword(module):
        raise InvalidValue(f"NAME must be a Python name, as of a module, got {name!r}. Try my_training")
    if module in {"decrescendo", *sys.stdlib_module_names} or module in packages_distributions():
        raise InvalidValue(
            f"NAME must not be the name of an installed module, got {name!r}: the script, and others in this folder, "
            "would import this file in its place. Try my_training"
        )
    if path.exists():
        raise InvalidValue(f"NAME must be of a new file, got {str(path)!r}, which exists. Choose another name")
    from decrescendo.base import write_whole

    write_whole(path, script(_PLAN, rows=DIGITS, run=f"runs/{module}", name=module))
    say(f"written: {path}\nnow:     python {path}")
