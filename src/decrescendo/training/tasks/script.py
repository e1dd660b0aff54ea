"""Writes a training as a script that the user can edit: data, model, loss, plan, training, statement."""

DIGITS = 1438  # rows of training.digits, which loads torch: a test compares them

_SCRIPT = '''"""A private training, from data to statement. Change the parts marked with numbers, in any order.

    python {name}.py                     # trains, and writes the folder {run}/
    decrescendo audit {name}:task --epsilon 2   # attacks such a training, to find mistakes
    decrescendo tune {name}:task --help  # searches for settings
"""

from pathlib import Path

import torch
from torch import nn

import decrescendo as dc
{imported}
{data}

# 3. The loss: one value per example, of that example alone. `reduction="none"` gives one each.
def loss(model, batch):
    inputs, targets = batch
    return nn.functional.cross_entropy(model(inputs), targets, reduction="none")


# 4. The plan: what may be learned of one example over the whole training, and how that is spent. The number of
# examples must be the true one, and is public. `decrescendo studio` plans by eye.
def plan():
    return {plan}


# What is measured on public data only: a score on private rows would be one more release.
def score(model):
    return {{"test_accuracy": dc.training.accuracy(model, *public_data())}}


# The same training for the command line: `decrescendo train {name}:task --epsilon 3 --out {run}`.
def task():
    return dc.training.Task(model=build, loss=loss, data=private_data, rows=ROWS, score=score, learning_rate={rate})


# 5. Train. Any optimiser of torch.optim will do: what it gets is noisy already. dc.Secure() is noise that nobody can
# repeat; a number in its place repeats the run, and whoever knows it can take the noise off.
def main():
    if Path("{run}").exists():
        raise SystemExit("{run} exists already: a run is never overwritten. Move it away first")
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr={rate})
    run = dc.train(model, loss, private_data(), plan(), optimizer, seed=dc.Secure(), progress=True)
    run = run.with_metrics(score(model))
    print(run.describe())

    # 6. The statement: what may be said of this model. run.save writes it beside the weights, for people (statement.md)
    # and for programs (statement.json). What only you know of the data is added by `decrescendo statement`.
    folder = run.save("{run}")
    print(f"written: {{folder}}/statement.md")


if __name__ == "__main__":
    main()
'''

_DIGITS = """\
# 1. The data: one row per example, as a tuple (or dict) of tensors, or anything with __len__ and __getitem__. Private
# rows train; public ones are for scores. Here: 1,797 handwritten digits that come with the library.
ROWS = {rows}


def private_data():
    return digits()[0]


def public_data():
    return digits()[1]


# 2. The model: any nn.Module whose examples do not meet (GroupNorm and LayerNorm instead of BatchNorm).
def build(seed=0):
    torch.manual_seed(seed)  # initial weights are public
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 10),
    )
"""

_MADE_UP = """\
# 1. The data: one row per example, as a tuple (or dict) of tensors, or anything with __len__ and __getitem__. Private
# rows train; public ones are for scores. Here: made-up measurements, as many as the plan says.
ROWS = {rows}


def made_up(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 8, generator=generator)
    return inputs, (inputs[:, 0] * inputs[:, 1] + inputs[:, 2] > 0).long()


def private_data():
    return made_up(ROWS, seed=1)


def public_data():
    return made_up(1_000, seed=2)


# 2. The model: any nn.Module whose examples do not meet (GroupNorm and LayerNorm instead of BatchNorm).
def build(seed=0):
    torch.manual_seed(seed)  # initial weights are public
    return nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 2))
"""


def script(plan: str, *, rows: int, run: str = "run", name: str = "train") -> str:
    """The text of a script that trains by a plan.

    Args:
        plan: Python that makes the plan.
        rows: number of examples in the plan; if it is that of the digits, they are the data, else made-up rows.
        run: folder that the run is saved into.
        name: of the module, in comments.

    >>> text = script('dc.Plan.load("plan.json")', rows=500)
    >>> "made-up measurements" in text, "digits" in text
    (True, False)
    """
    data, imported = _MADE_UP, ""
    if rows == DIGITS:
        data, imported = _DIGITS, "from decrescendo.training.digits import digits\n"
    return _SCRIPT.format(
        name=name, run=run, plan=plan.replace("\n", "\n    "), data=data.format(rows=rows), imported=imported,
        rate=1.0 if rows == DIGITS else 0.5,
    )  # fmt: skip
