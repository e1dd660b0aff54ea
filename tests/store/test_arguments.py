"""A store says what was given to it, and that it was closed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import decrescendo as dc
from decrescendo.errors import InvalidType, InvalidValue


def test_a_store_says_what_was_given_to_it_and_that_it_was_closed(tmp_path: Path) -> None:
    budget, path = dc.Budget(9.0, 1e-2), tmp_path / "s.db"
    create, about = unchecked(dc.Store.create), {"dataset": "d", "rows": 1}
    store = dc.Store.create(path, budget, **about)  # (after it nothing that it calls is checked in this test)
    store.close()
    with pytest.raises(InvalidType, match="path must be"):
        unchecked(dc.Store.__init__)(object.__new__(dc.Store), None)
    with pytest.raises(InvalidType, match="path must be"):
        create(dc.Store, None, budget, **about)
    with pytest.raises(InvalidType, match="composition must be"):
        create(dc.Store, tmp_path / "other.db", budget, **about, composition=None)
    with pytest.raises(InvalidValue, match=r"after close\(\)"):
        store.describe()
    with pytest.raises(InvalidType, match="resume must be"):
        unchecked(dc.Checkpoints.__init__)(object.__new__(dc.Checkpoints), tmp_path / "c", resume="yes")


def unchecked(function: Any) -> Callable[..., Any]:
    """Without the type checker of the test run, as users call it; of a class's method the function."""
    function = getattr(function, "__func__", function)
    return getattr(function, "__wrapped__", function)
