"""Facts: the committed audits on MNIST say what docs/explanation/audit.md says."""

import json
from pathlib import Path

import pytest
from broken_builds import BROKEN

from decrescendo.audit import AuditResult

ROOT = Path(__file__).resolve().parents[2]
AUDITS = json.loads((ROOT / "results/audit/mnist.json").read_text(encoding="utf-8"))["audits"]
EPSILONS = (1.0, 2.0, 4.0, 8.0)


def results(build: str, epsilon: float) -> list[AuditResult]:
    """Every verdict is drawn again from its numbers."""
    return [
        AuditResult.from_json(json.dumps(row["result"]))
        for row in AUDITS
        if (row["build"], row["epsilon"]) == (build, epsilon)
    ]


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_bounds_of_the_healthy_build_stay_below_the_certified_epsilon(epsilon: float) -> None:
    found = results("healthy", epsilon)
    assert len({result.attack for result in found}) == 7
    for result in found:
        assert result.certified <= epsilon
        assert max(result.lower, result.lower_by_curve) < result.certified
        assert result.confidence == 0.95
        assert result.caught_by == ()


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("build", BROKEN)
def test_every_broken_build_is_caught(build: str, epsilon: float) -> None:
    assert any(result.caught_by for result in results(build, epsilon))
