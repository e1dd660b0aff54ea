"""What people read must be no better than what was proved."""

from hypothesis import given
from hypothesis import strategies as st

from decrescendo.accounting.budget import Guarantee, Unit, rounded


@given(st.floats(1e-12, 1e6))
def test_shown_bounds_are_on_the_safe_side(value: float) -> None:
    assert float(rounded(value, "down")) <= value <= float(rounded(value, "up"))
    assert float(rounded(value, "up")) - float(rounded(value, "down")) <= 1.1e-3 * value


def test_a_guarantee_shows_its_upper_end_up_and_its_lower_end_down() -> None:
    shown = str(Guarantee(1.00011, 1e-5, Unit.EXAMPLE, "Pld", "upper", 0.99999))
    assert "(1.001, 1e-05)-DP" in shown
    assert ">= 0.9999" in shown
