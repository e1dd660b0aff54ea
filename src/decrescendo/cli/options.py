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


# Some commands need what others have a default for.
_EPSILON = typer.Option(help="Budget: epsilon > 0 of the whole run.")

TaskName = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="module:function that returns a Task or (model, loss, data); or digits, the example that comes along.",
    ),
]
PlanFile = Annotated[Path | None, typer.Option("--plan", help="A plan file; instead of the budget options.")]
Accountant = Annotated[
    AccountantName | None,
    typer.Option(
        metavar="NAME",
        help=f"Accountant of the plan: {', '.join(AccountantName)}. Default: {DEFAULT.option}, certified; "
        f"{_ESTIMATES} are estimates.",
    ),
]
OptimizerOption = Annotated[
    OptimizerName | None, typer.Option("--optimizer", help="Optimiser. Default: the task's.")
]
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
        help="Replay checked passes without Python: where that is faster, as measured in the first steps (auto), "
        "wherever it can be done (on), or never (off). Default: the task's, which is auto if it does not say.",
    ),
]
MicrobatchSize = Annotated[
    int | None,
    typer.Option(help="At most so many examples at once: less memory. Default: the task's.", min=1),
]
StoreFile = Annotated[
    Path | None, typer.Option("--store", help="Ledger of the data set, from `decrescendo ledger --create`.")
]
RunName = Annotated[str, typer.Option("--name", help="With --store: name of the run in its list.")]
Seed = Annotated[
    int | None,
    typer.Option(
        help="For repeatable experiments; as sensitive as the data. Default: noise that nobody can predict."
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
    typer.Option("--unit", help="Who is protected: an example, a person, or a client, with all they have."),
]
ExamplesPerPerson = Annotated[
    int | None,
    typer.Option(help="The most examples that one person has: people are protected, with all of theirs."),
]
Clients = Annotated[int | None, typer.Option(help="With --unit client: number of clients N; public.")]
ClientsPerRound = Annotated[
    float | None, typer.Option(help="With --unit client: expected clients of a round; Poisson sampling.")
]
BatchEnd = Annotated[
    float | None,
    typer.Option(
        help="Expected batch size of the last step: it moves there linearly from --batch. Default: it stays."
    ),
]
MaxBatchSize = Annotated[
    str | None,
    typer.Option(
        help="Truncate batches to so many rows; auto: the least that costs a hundredth of delta. Default: any size."
    ),
]
RandomAllocation = Annotated[
    bool | None,
    typer.Option(
        "--random-allocation",
        help="Each example once an epoch, in a step that it draws by itself, in place of Poisson sampling.",
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
Steps = Annotated[int | None, typer.Option(help="Number of steps (rounds, over clients).")]
Epochs = Annotated[float | None, typer.Option(help="Instead of --steps: expected passes over the data.")]
ScheduleName = Annotated[
    Schedule | None,
    typer.Option(metavar="NAME", help=f"What moves: {', '.join(Schedule)}. Default: dynamic."),
]
RhoMu = Annotated[
    float, typer.Option(help="growing-mu, dynamic, noise decays: mu grows by this factor over the run.")
]
RhoC = Annotated[float, typer.Option(help="sensitivity-decay, dynamic, optimal: the clip norm falls by it.")]
LrSchedule = Annotated[
    Decay | None,
    typer.Option(help="optimal: how the learning rate of the run will fall; the noise follows it."),
]
Lr = Annotated[float | None, typer.Option(help="optimal, with --curvature: the first learning rate.")]
Curvature = Annotated[
    float | None,
    typer.Option(
        help="optimal: smallest curvature (PL constant) of the loss; early noise is then forgotten."
    ),
]
Momentum = Annotated[float | None, typer.Option(help="optimal: momentum in [0, 1).")]
Influence = Annotated[
    Path | None,
    typer.Option(
        help="optimal: file of influences, one a step, of the variance of the noise; JSON list or lines."
    ),
]
InfluenceGrowth = Annotated[
    float | None,
    typer.Option(
        help="optimal: noise of the last step weighs so many times that of the first, exponentially between."
    ),
]
Bands = Annotated[
    str | None,
    typer.Option(
        help="optimal: noise correlated over so many steps, so that later ones take away what earlier ones added; "
        "auto: 1, 2, 4, .., whichever leaves least noise in the iterates. Default: independent."
    ),
]
Compute = Annotated[
    float | None,
    typer.Option(
        help="optimal, in place of --batch: examples to process over the run, expected; the batch moves with the noise."
    ),
]
Clip = Annotated[float | None, typer.Option(help="Clip norm C_0 of one example's gradient.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines and nothing else.")]
Found = Annotated[Path, typer.Option("--out", help="JSON file for what was found.")]
TrialsOf = Annotated[
    str,
    typer.Option(
        "--trials", help="A number; with --private its law: geometric:10, logarithmic:10, poisson:10, 0.5:10."
    ),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="To search: learning_rate=0.1..1:log, momentum=0..0.9 or batch=64,128. May be given several times."
    ),
]
Fix = Annotated[list[str] | None, typer.Option(help="name=value: not searched. May be given several times.")]
RHO_MU, RHO_C = 1.25, 3.3  # the values released by Du et al.
