"""The declared surface: documented, with examples, typed, and light to import."""

import importlib
import inspect
import os
import pathlib
import subprocess
import sys
from typing import Any

import pytest
from often import some

import decrescendo as dc

ROOMS = (
    "decrescendo",
    *(
        f"decrescendo.{room}"
        for room in (
            "accounting", "audit", "clipping", "federated", "optim", "plans", "plans.curves", "training.steering"
        )
    ),
)  # fmt: skip
# What the papers and other clients use: documented, and not always by an example.
ALSO = tuple(f"decrescendo.{room}" for room in ("base", "cli", "report", "training", "training.digits"))
PUBLIC = [
    (room, name)
    for room in ROOMS
    for name in importlib.import_module(room).__all__
    if (room, name) != ("decrescendo.training.steering", "Policy")  # a Protocol; another `Policy` is none
    if not inspect.ismodule(getattr(importlib.import_module(room), name)) and not name.isupper()
]
PUBLIC += [
    ("decrescendo.training", name)
    for name in ("Assumption", "Provenance", "Declaration", "Statement", "Task", "accuracy")
]
# Seams and aliases have nothing to run.
WITHOUT_EXAMPLE = {
    "Accountant": "a Protocol",
    "Agreement": "a type alias",
    "Clipper": "a Protocol",
    "Filter": "a Protocol",
    "NoiseAware": "a Protocol",
    "Curve": "a type alias",
    "Batch": "a type alias",
    "Loss": "a type alias",
    "CurveOrValues": "a type alias",
}
ALIASES = {name for name, reason in WITHOUT_EXAMPLE.items() if reason == "a type alias"}


def public(room: str, name: str) -> Any:
    return getattr(importlib.import_module(room), name)


def test_every_public_name_is_documented_with_an_example() -> None:
    for room, name in PUBLIC:
        thing = public(room, name)
        if name in ALIASES:
            assert not inspect.isclass(thing) or thing is Any, name
        else:
            assert ">>>" in (inspect.getdoc(thing) or "") or name in WITHOUT_EXAMPLE, (room, name)


@pytest.mark.parametrize("room", [*ROOMS, *ALSO])
def test_every_room_says_what_it_is_and_its_names_what_they_are(room: str) -> None:
    found = importlib.import_module(room)
    assert inspect.getdoc(found)
    for name in getattr(found, "__all__", ()):
        thing = getattr(found, name)
        if inspect.ismodule(thing) or inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


def test_every_room_is_reached_from_the_top() -> None:
    folder = pathlib.Path(dc.__file__).parent
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")} - {"cli", "studio"}
    named = {name for name in dir(dc) if inspect.ismodule(getattr(dc, name))}
    assert rooms | {"errors"} == named - {"curves", "hf", "steering"}


def test_no_room_raises_attribute_error() -> None:
    """Whatever lies in the folder, the command line and files of one room too, from a fresh `import decrescendo`."""
    folder = pathlib.Path(dc.__file__).parent
    rooms = {path.parent.name for path in folder.glob("*/__init__.py")}
    rooms |= {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert {"federated", "training", "plans", "cli", "errors"} <= rooms
    for name in sorted(rooms | {"steering", "curves"}):
        assert inspect.ismodule(getattr(dc, name)), name
    for inner in ("digits", "steering"):
        assert inspect.ismodule(getattr(dc.training, inner)), inner


# Outside checks call the library by these names and arguments; they do not change.
CONTRACT = {
    "Budget": "epsilon delta unit",
    "Unit.EXAMPLE": None,
    "Unit.CLIENT": None,
    "PoissonSampling": "dataset_size expected_batch_size",
    "calibrate": "budget sampling steps privacy clip batch accountant",
    "Release": "sample_rate noise_multiplier count",
    "Ledger": None,
    "Ledger.of": "noise_multipliers sample_rate",
    "Plan": None,
    "Plan.save": "path",
    "Plan.load": "path",
    "Plan.verify": None,
    "Guarantee": None,
    "accounting.Pld": "rtol",
    "accounting.Pld.bracket": "ledger delta",
    "accounting.Pld.epsilon": "ledger delta",
    "accounting.Pld.delta": "ledger epsilon",
    **{f"accounting.{name}": None for name in ("GdpClt", "Rdp", "Zcdp", "Tcdp", "Gaussian")},
    "clipping.Engine": "model loss",
    "clipping.Engine.clipped_sum": "batch clip_norm",
    "clipping.Reference": "model loss",
    "clipping.Reference.clipped_sum": "batch clip_norm",
    "clipping.ClippedSum": "gradients sensitivity",
    "privatise": "clipped noise_multiplier sampling stream",
    "NoisyMean": None,
    "apply": "noisy model optimizer",
    "train": "model loss data plan optimizer seed collate_fn num_workers world store checkpoints",
    "Trainer": "model loss plan optimizer seed world",
    "Trainer.batches": "data collate_fn num_workers",
    "Trainer.step": "batch",
    "Run.rows_independent": None,
    "Run.assumptions": None,
    "Secure": "",
    "distributed.join": None,
    "hf.loss": "model batch",
    "Store": None,
    "Checkpoints": None,
}


@pytest.mark.parametrize("name", CONTRACT)
def test_the_names_that_others_call_are_there(name: str) -> None:
    thing: Any = dc
    for part in name.split("."):
        thing = getattr(thing, part)
    wanted = CONTRACT[name]
    if wanted is not None:
        parameters = [key for key in inspect.signature(thing).parameters if key != "self"]
        assert set(wanted.split()) <= set(parameters)
        assert bool(wanted) or not parameters


CURVES = """
    constant linear exponential cosine growing_mu sensitivity_decay from_clip from_array piecewise_constant join
    influence curvature exponential_noise_decay step_noise_decay time_noise_decay polynomial_noise_decay
"""


def test_the_curves_that_others_call_are_there() -> None:
    assert set(CURVES.split()) <= set(dc.curves.__all__)


@pytest.mark.parametrize(
    ("room", "name"),
    [
        ("curves", "constant"),
        ("accounting", "Bound"),
        ("optim", "AdamBC"),
        ("plans", "Schedule"),
        ("training", "Statement"),
        ("training", "Task"),
    ],
)
def test_what_a_room_holds_is_not_repeated_at_the_top(room: str, name: str) -> None:
    assert hasattr(getattr(dc, room), name)
    with pytest.raises(AttributeError, match=name):
        getattr(dc, name)


def test_exceptions_are_needed() -> None:
    """Whoever writes an example takes the name off the list."""
    for name in WITHOUT_EXAMPLE.keys() - ALIASES:
        room = next(room for room, known in PUBLIC if known == name)
        thing = public(room, name)
        assert ">>>" not in (inspect.getdoc(thing) or ""), name
        if WITHOUT_EXAMPLE[name] == "a Protocol":
            assert getattr(thing, "_is_protocol", False), name


def test_no_public_signature_swallows_unknown_keywords() -> None:
    for room, name in PUBLIC:
        thing = public(room, name)
        if not callable(thing) or name in ALIASES:
            continue
        # A Protocol's own constructor is typing's, and nobody calls it.
        called = [] if WITHOUT_EXAMPLE.get(name) == "a Protocol" else [thing]
        if inspect.isclass(thing):
            called += [value for key, value in vars(thing).items() if callable(value) and not key.startswith("_")]
        for function in called:
            kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
            assert inspect.Parameter.VAR_KEYWORD not in kinds, function


def test_names_are_listed_once_and_lead_somewhere() -> None:
    assert len(set(dc.__all__)) == len(dc.__all__)
    assert set(dir(dc)) > set(dc.__all__)
    assert {name for name in dc.__all__ if inspect.ismodule(getattr(dc, name))} == {"curves"}
    assert len(dc.__all__) <= 25, "the nouns of a run; everything else is reached through its room"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dc.nothing  # noqa: B018


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The names are loaded lazily at run time and imported for type checkers: the two lists must agree."""
    source = inspect.getsource(dc)
    block = source[source.index("if TYPE_CHECKING:") : source.index("__version__")]
    seen = {
        alias
        for line in block.replace("(", " ").replace(")", " ").split("from decrescendo")[1:]
        for alias in line.split("import", 1)[1].split(" as ")[-1].replace(",", " ").split()
    }
    assert seen == set(dir(dc))


@pytest.mark.parametrize(
    "code",
    some(
        [
            "import decrescendo.accounting",
            "import decrescendo; decrescendo.calibrate",
            "import decrescendo as dc; dc.accounting.Pld().epsilon(dc.Ledger.of([1.0, 0.9], 0.1), 1e-5)",
            "import decrescendo as dc; dc.Plan, dc.curves, dc.Streams(0).numpy('sampling')",
            "import decrescendo as dc; dc.plans.Plan, dc.accounting.Bound, dc.base.Streams, dc.errors, "
            "dc.training.Store",
        ],
        2,
    ),
)
def test_the_accounting_half_loads_nothing_slow(code: str) -> None:
    # Not this process: it has torch already. The type-checking hook of the tests must be off there.
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("JAXTYPING", "PYTEST"))}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; {code}; print({{'torch', 'beartype', 'dp_accounting'}} & {{*sys.modules}})",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_training_does_load_torch() -> None:
    """The probe of the test above sees torch where it is."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, decrescendo as dc; dc.train; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
