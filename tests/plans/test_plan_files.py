"""Plan files that hold values of another kind than a plan's."""

import json
import warnings
from typing import Any

from decrescendo.accounting import Budget
from decrescendo.base import sealed
from decrescendo.errors import FileRefused
from decrescendo.plans import Plan, PoissonSampling, StratifiedPoissonSampling, calibrate

KINDS: list[Any] = [None, True, [], {}, "x", -1, float("nan"), 2**70, [[1, 2], [3]], {"a": 1}, ["1"] * 6]


def places(content: Any, before: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to the values in a file; of lists to the first."""
    keys = list(content) if isinstance(content, dict) else [0] if isinstance(content, list) and content else []
    return [place for key in keys for place in [(*before, key), *places(content[key], (*before, key))]]


def test_they_are_refused_as_files() -> None:
    """Lists for numbers, texts for objects: what reads them raises errors of Python's own, and warns."""
    budget, strata = Budget(4.0, 1e-3), StratifiedPoissonSampling({"a": (40, 4.0), "b": (10, 3.0)})
    tried = refused = 0
    for plan in (
        calibrate(budget, PoissonSampling(50, 5), steps=3, clip=1.0, bands=3),
        calibrate(budget, strata, steps=3, clip=1.0),
        Plan.without_privacy(PoissonSampling(50, 5), steps=3),
    ):
        whole = {key: value for key, value in json.loads(plan.to_json()).items() if key != "sha256"}
        assert Plan.from_json(sealed.seal(whole)) == plan
        for place in places(whole):
            for kind in KINDS:
                changed = json.loads(json.dumps(whole))
                at = changed
                for key in place[:-1]:
                    at = at[key]
                at[place[-1]] = kind
                tried += 1
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    text = sealed.seal(changed, finite=False)
                    try:
                        Plan.from_json(text)
                    except FileRefused:
                        refused += 1
    assert refused > 0.95 * tried > 500
