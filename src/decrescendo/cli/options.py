"""The options that commands share. The names repeat tables from elsewhere, so that --help stays quick: a test
compares them."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from decrescendo.accounting.table import DEFAULT, OPTIONS


class Schedule(StrEnum):
    """Names of plans.SCHEDULES, repeated here so that --help is quick (a test compares
    them)."""

    CONSTANT = "constant"
    GROWING_MU = "growing-mu"
    SENSITIVITY_DECAY = "sensitivity-decay"
    DYNAMIC = "dynamic"
    OPTIMAL = "optimal"
    EXPONENTIAL_DECAY = "exponential-decay"
    TIME_DECAY = "time-decay"
    STEP_DECAY = "step-decay"
    POLYNOMIAL_DECAY = "polynomial-decay"


class AttackName(StrEnum):
    """What `audit` does: one run, or the names of audit.attacks."""

    CANARIES = "canaries"
    ONE_CANARY = "one-canary"
    OPPOSED = "opposed"
    BATCH_SIZE = "batch-size"
    PADDED = "padded"
    CROWDED = "crowded"
    COUNTED = "counted"
    ONCE = "once"
    TOLD = "told"


class CaptureWhen(StrEnum):
    """`EngineSettings.capture` in words."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"

    @property
    def setting(self) -> bool | Literal["auto"]:
        """As the engine has it."""
        return "auto" if self is CaptureWhen.AUTO else self is CaptureWhen.ON


class MemoryUse(StrEnum):
    """`EngineSettings.memory`."""

    NORMAL = "normal"
    LOW = "low"


class Decay(StrEnum):
    """How the learning rate falls."""

    NONE = "none"
    LINEAR = "linear"
    COSINE = "cosine"


class OptimizerName(StrEnum):
    """Names of training.OPTIMIZERS."""

    SGD = "sgd"
    MOMENTUM_BC = "momentum-bc"
    ADAM = "adam"
    ADAM_BC = "adam-bc"


class AccountantName(StrEnum):
    """Whose word a plan is calibrated by: the options of accounting.table."""

    _ignore_ = "option"
    for option in OPTIONS:
        vars()[option.upper()] = option


_ESTIMATES = " and ".join(option for option, known in OPTIONS.items() if known.kind == "estimate")


class UnitName(StrEnum):
    """Names of accounting.Unit."""

    EXAMPLE = "example"
    CLIENT = "client"
    PERSON = "person"


RHO_MU, RHO_C = 1.25, 3.3  # the values released by Du et al.

# Some commands need what others have a default for.
_EPSILON = typer.Option(help="Budget: epsilon > 0 of the whole run.")

TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="module:function that returns a Task or (model, loss, data); or digits, the built-in example.",
    ),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="A plan file, in place of the budget options.")]
Accountant = Annotated[
    AccountantName | None,
    typer.Option(
        metavar="NAME",
        help=f"Accountant of the plan: {', '.join(AccountantName)}. Default: {DEFAULT.option}, certified; "
        f"{_ESTIMATES} are estimates.",
    ),
]
OptimizerOption = Annotated[OptimizerName | None, typer.Option("--optimizer", help="Optimiser. Default: the task's.")]
Rate = Annotated[float | None, typer.Option("--lr", help="Learning rate. Default: the task's.")]
MomentumOf = Annotated[
    float | None, typer.Option("--momentum", help="Momentum in [0, 1), for sgd and momentum-bc. Default 0.")
]
LrDecay = Annotated[
    Decay | None,
    typer.Option("--lr-decay", help="Learning rate constant (none, the default) or falling to zero."),
]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", min=1)]
Capture = Annotated[
    CaptureWhen | None,
    typer.Option(
        help="Replay checked passes without Python: if that is faster in the first steps (auto), "
        "wherever it can be done (on), or never (off). Default: the task's, which is auto if it does not say.",
    ),
]
Memory = Annotated[
    MemoryUse | None,
    typer.Option(
        help="low: process each batch in two halves, which takes less memory and more time. Default: the task's, which "
        "is normal if it does not say.",
    ),
]
MicrobatchSize = Annotated[
    int | None,
    typer.Option(help="Process at most this many examples at once, to save memory. Default: the task's.", min=1),
]
StoreFile = Annotated[
    Path | None, typer.Option("--store", help="Ledger of the data set, from `decrescendo ledger --create`.")
]
RunName = Annotated[str, typer.Option("--name", help="With --store: name of the run in the store.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="For reproducible experiments; as sensitive as the data. Default: noise that nobody can predict."
    ),
]
SavePlan = Annotated[Path | None, typer.Option(help="Write the plan to this JSON file.")]
EpsilonNeeded = Annotated[float, _EPSILON]
Epsilon = Annotated[float | None, _EPSILON]
Delta = Annotated[float | None, typer.Option(help="Budget: delta in (0, 1). Default 1 / (10 N).")]
Batch = Annotated[float | None, typer.Option(help="Expected batch size; Poisson sampling.")]
DatasetSize = Annotated[int | None, typer.Option(help="Number of examples N; public.")]
UnitOf = Annotated[
    UnitName,
    typer.Option("--unit", help="The unit of privacy: an example, or a person or client with all their records."),
]
ExamplesPerPerson = Annotated[
    int | None,
    typer.Option(help="Protect people with at most this many examples each."),
]
Clients = Annotated[int | None, typer.Option(help="With --unit client: number of clients N; public.")]
ClientsPerRound = Annotated[
    float | None, typer.Option(help="With --unit client: expected clients of a round; Poisson sampling.")
]
BatchEnd = Annotated[
    float | None,
    typer.Option(help="Expected batch size of the last step; it changes linearly from --batch. Default: constant."),
]
MaxBatchSize = Annotated[
    str | None,
    typer.Option(
        help="Truncate batches to this many rows; auto: the smallest that costs at most 1 % of delta. Default: off."
    ),
]
RandomAllocation = Annotated[
    bool | None,
    typer.Option(
        "--random-allocation",
        help="Each example takes part once per epoch, in a step drawn for it, in place of Poisson sampling.",
    ),
]
Strata = Annotated[
    list[str] | None,
    typer.Option(
        "--stratum",
        metavar="NAME:RECORDS:EXPECTED",
        help="In place of --dataset-size and --batch: records of a kind, and how many of them a batch is expected to "
        "hold. Repeat it.",
    ),
]
Steps = Annotated[int | None, typer.Option(help="Number of steps (or rounds, with clients).")]
Epochs = Annotated[float | None, typer.Option(help="Instead of --steps: expected passes over the data.")]
ScheduleName = Annotated[
    Schedule | None,
    typer.Option(metavar="NAME", help=f"Schedule: {', '.join(Schedule)}. Default: dynamic."),
]
LargestLoss = Annotated[
    float | None,
    typer.Option(help="For a loss that is released: losses above count as this. Known without the data. Default 10."),
]
RhoMu = Annotated[
    float | None,
    typer.Option(
        help=f"For growing-mu, dynamic and noise decays: mu grows by this factor over the run. Default {RHO_MU}."
    ),
]
RhoC = Annotated[
    float | None,
    typer.Option(
        help=f"For sensitivity-decay, dynamic and optimal: the clip norm falls by this factor. Default {RHO_C}."
    ),
]
LrSchedule = Annotated[
    Decay | None,
    typer.Option(help="For optimal: how the learning rate of the run falls; the noise follows it."),
]
Lr = Annotated[float | None, typer.Option(help="For optimal, with --curvature: the first learning rate.")]
Curvature = Annotated[
    float | None,
    typer.Option(help="For optimal: smallest curvature (PL constant) of the loss; early noise then decays."),
]
Momentum = Annotated[float | None, typer.Option(help="For optimal: momentum in [0, 1).")]
Influence = Annotated[
    Path | None,
    typer.Option(
        help="For optimal: file with one influence per step, on the variance of the noise; JSON list or lines."
    ),
]
InfluenceGrowth = Annotated[
    float | None,
    typer.Option(help="For optimal: noise of the last step matters this many times as much as of the first."),
]
Bands = Annotated[
    str | None,
    typer.Option(
        help="For optimal: correlate noise over this many steps, so that later noise cancels earlier noise; "
        "auto: 1, 2, 4, .., whichever leaves least noise in the iterates. Default: independent."
    ),
]
Compute = Annotated[
    float | None,
    typer.Option(
        help="For optimal, in place of --batch: expected number of examples to process; batch size and noise change."
    ),
]
Clip = Annotated[float | None, typer.Option(help="Clip norm C_0 of one example's gradient.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines and nothing else.")]
Found = Annotated[Path, typer.Option("--out", help="JSON file for the result.")]
TrialsOf = Annotated[
    str,
    typer.Option(
        "--trials",
        help="A number; with --private a distribution: geometric:10, logarithmic:10, poisson:10, 0.5:10.",
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="A setting to search: learning_rate=0.1..1:log, momentum=0..0.9 or batch=64,128. May be repeated."
    ),
]
Fix = Annotated[list[str] | None, typer.Option(help="A fixed setting, name=value. May be repeated.")]
