"""The declared surface: documented, with examples, typed, and light to import."""

import importlib
import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

import decrescendo as dc

ROOMS = (
    "decrescendo",
    *(
        f"decrescendo.{room}"
        for room in ("accounting", "audit", "clipping", "data", "models", "steering", "federated")
    ),
)
PUBLIC = [(room, name) for room in ROOMS for name in importlib.import_module(room).__all__]
# Seams and aliases have nothing to run; downloads must not happen in an example.
WITHOUT_EXAMPLE = {
    "Accountant": "a Protocol",
    "Clipper": "a Protocol",
    "Filter": "a Protocol",
    "Policy": "a Protocol",
    "Curve": "a type alias",
    "Batch": "a type alias",
    "Loss": "a type alias",
    "mnist": "needs a download",
    "fashion_mnist": "needs a download",
    "principal_mnist": "needs a download",
    "names": "needs a download",
    "imdb": "needs a download",
    "imdb_half": "needs a download",
    "imdb_public": "needs a download",
    "infinite_mnist": "needs a download",
    "chest_xray": "needs a download",
    "accounting": "a room",
    "audit": "a room",
    "attacks": "a room",
    "clipping": "a room",
    "curves": "a room",
    "data": "a room",
    "errors": "a room",
    "models": "a room",
    "report": "a room",
}
ALIASES = {name for name, reason in WITHOUT_EXAMPLE.items() if reason == "a type alias"}


def public(room: str, name: str) -> Any:
    return getattr(importlib.import_module(room), name)


@pytest.mark.parametrize(("room", "name"), PUBLIC)
def test_every_public_name_is_documented_with_an_example(room: str, name: str) -> None:
    thing = public(room, name)
    if name in ALIASES:
        assert not inspect.isclass(thing) or thing is Any
        return
    text = inspect.getdoc(thing) or ""
    assert text, "no docstring"
    assert ">>>" in text or name in WITHOUT_EXAMPLE


def test_exceptions_are_needed() -> None:
    """Whoever writes an example takes the name off the list."""
    for name in WITHOUT_EXAMPLE.keys() - ALIASES:
        room = next(room for room, known in PUBLIC if known == name)
        thing = public(room, name)
        assert ">>>" not in (inspect.getdoc(thing) or ""), name
        if WITHOUT_EXAMPLE[name] == "a Protocol":
            assert getattr(thing, "_is_protocol", False), name


@pytest.mark.parametrize(("room", "name"), PUBLIC)
def test_no_public_signature_swallows_unknown_keywords(room: str, name: str) -> None:
    thing = public(room, name)
    if not callable(thing) or name in ALIASES:
        return
    # A Protocol's own constructor is typing's, and nobody calls it.
    called = [] if WITHOUT_EXAMPLE.get(name) == "a Protocol" else [thing]
    if inspect.isclass(thing):
        called += [value for key, value in vars(thing).items() if callable(value) and not key.startswith("_")]
    for function in called:
        kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
        assert inspect.Parameter.VAR_KEYWORD not in kinds, function


def test_names_are_listed_once_and_lead_somewhere() -> None:
    assert len(set(dc.__all__)) == len(dc.__all__)
    assert dir(dc) == sorted(dc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        dc.nothing  # noqa: B018


def test_what_type_checkers_see_is_what_there_is() -> None:
    """The names are loaded lazily at run time and imported for type checkers: the two lists must agree."""
    source = inspect.getsource(dc)
    block = source[source.index("if TYPE_CHECKING:") : source.index("__version__")]
    seen = {
        alias
        for line in block.replace("(", " ").replace(")", " ").split("from decrescendo")[1:]
        for alias in line.split("import", 1)[1].replace(",", " ").split()
    }
    assert seen == set(dc.__all__)


@pytest.mark.parametrize(
    "code",
    [
        "import decrescendo.accounting",
        "import decrescendo; decrescendo.calibrate",
        "import decrescendo as dc; dc.accounting.Pld().epsilon(dc.Ledger.of([1.0, 0.9], 0.1), 1e-5)",
        "import decrescendo as dc; dc.Plan, dc.curves, dc.Streams(0).numpy('sampling')",
    ],
)
def test_the_accounting_half_loads_no_torch(code: str) -> None:
    # Not this process: it has torch already. The type-checking hook of the tests must be off there.
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("JAXTYPING", "PYTEST"))
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; {code}; print('torch' in sys.modules, 'beartype' in sys.modules)",
        ],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert done.stdout.split() == ["False", "False"]


def test_training_does_load_torch() -> None:
    """The probe of the test above sees torch where it is."""
    done = subprocess.run(
        [sys.executable, "-c", "import sys, decrescendo as dc; dc.train; print('torch' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "True"
