"""A real training in a process of its own: the command line on the digits, with a store and checkpoints.

Run by the tests as ``python life.py FOLDER STEPS``; each step is noted in a file after the model has moved.
"""

import signal
import sys
from pathlib import Path

import torch

from decrescendo import training
from decrescendo.cli import main


def noted(folder: Path) -> None:
    """Let every step be seen from outside."""
    step = training.Trainer.step

    def with_note(self: training.Trainer, *args: object, **kwargs: object) -> object:
        found = step(self, *args, **kwargs)  # type: ignore[arg-type]
        with (folder / "seen").open("a") as seen:
            seen.write(f"{len(self.ledger)}\n")
        return found

    training.Trainer.step = with_note  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    # A shell that starts tests in the background has its children ignore Ctrl-C, and they would hand that on.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    noted(place)
    sys.argv = ["decrescendo", *sys.argv[2:]]
    main()
