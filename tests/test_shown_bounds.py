"""What people read must be no better than what was proved."""

from hypothesis import given
from hypothesis import strategies as st

from decrescendo.accounting.budget import Budget, Guarantee, Unit, rounded
from decrescendo.accounting.verify import Verification
from decrescendo.audit import AuditResult
from decrescendo.plans import Plan, PoissonSampling, Schedule
from decrescendo.training import Run


@given(st.floats(1e-12, 1e6))
def test_shown_bounds_are_on_the_safe_side(value: float) -> None:
    assert float(rounded(value, "down")) <= value <= float(rounded(value, "up"))
    assert float(rounded(value, "up")) - float(rounded(value, "down")) <= 1.1e-3 * value


def test_a_guarantee_shows_its_upper_end_up_and_its_lower_end_down() -> None:
    shown = str(Guarantee(1.00011, 1e-5, Unit.EXAMPLE, "Pld", "upper", 0.99999))
    assert "(1.001, 1e-05)-DP" in shown
    assert ">= 0.9999" in shown


def test_no_delta_is_shown_smaller_than_it_is() -> None:
    """(0.6985, 1.234e-05) was shown of a run whose epsilon is 0.69849 at 1.23449e-05, and 0.69851 at 1.234e-05."""
    told = Guarantee(0.69849, 1.23449e-5, Unit.EXAMPLE, "Pld", "upper")
    assert "(0.6985, 1.235e-05)-DP" in str(told)
    assert "1.235e-05" in str(Verification(0.6, 0.7, told))
    assert "epsilon in [0.6123, 0.7124]" in str(Verification(0.61239, 0.71231, told))
    audit = AuditResult("many runs", "one", 1.0, 1.23449e-5, 0.95, 8, 1, 0.1, 0.2, {})
    assert "at delta 1.235e-05" in audit.describe()
    plan = Plan(
        Budget(1.0000004, 1.2344549e-5),
        PoissonSampling(1_000, 10),
        Schedule([2.0, 1.0], [1.0, 0.5]),
        Guarantee(0.99, 1.2344549e-5, Unit.EXAMPLE, "Pld", "upper"),
    )
    assert "(1.00001, 1.23446e-05)-DP for adding or removing" in plan.describe()
    run = Run(plan, plan.ledger, plan.guarantee, weights={})
    assert "promised: epsilon 1.00001 at delta 1.23446e-05" in run.describe()
    assert "**(0.99, 1.235e-05)-differential privacy" in run.statement().to_markdown()
