"""docs/reference/coverage.md is what the probes say, and what it says is covered equals the slow loop."""

import coverage_page
import pytest
import torch
from equality import check_equal
from module_probes import PROBES, Probe, loss, parameterised
from often import some
from refusal_probes import REFUSALS
from torch import nn

from decrescendo.clipping import Engine, EngineSettings
from decrescendo.errors import UnsupportedModel

pytestmark = pytest.mark.filterwarnings("ignore::Warning")
FORMS = {f"{name} {form}".strip(): probe for name, forms in PROBES.items() for form, probe in forms.items()}

REMEDIES = (
    "onstruct",
    "Freeze",
    "Replace",
    "GroupNorm",
    "Leave out",
    "Keep one row",
    "Let row i",
    "Use a constant",
)


def test_every_class_with_parameters_has_a_probe() -> None:
    found = parameterised()
    assert len(found) > 40
    assert found.keys() - PROBES.keys() == set()


@pytest.mark.slow
@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="the page is of one version of torch")
def test_the_page_is_what_the_probes_say() -> None:
    assert coverage_page.PAGE.read_text(encoding="utf-8") == coverage_page.page(), (
        "run python tests/support/coverage_page.py"
    )


@pytest.mark.parametrize(
    "dtype", [torch.float64, pytest.param(torch.float32, marks=pytest.mark.slow)], ids=["float64", "float32"]
)
@pytest.mark.parametrize("name", some(FORMS, 6))
def test_a_module_equals_the_reference_or_is_refused_by_name_with_a_remedy(name: str, dtype: torch.dtype) -> None:
    probe: Probe = FORMS[name]
    model, x = probe.make(dtype, 6)
    error = refusal(model, x)
    if error is None:
        check_equal(model, x, dtype, EngineSettings(), loss)
    else:
        assert any(word in error for word in REMEDIES), f"no remedy: {error}"


def refusal(model: nn.Module, x: torch.Tensor) -> str | None:
    try:
        Engine(model, loss).check(x)
    except UnsupportedModel as error:
        return str(error)
    return None


@pytest.mark.parametrize("name", REFUSALS)
def test_what_the_page_calls_refused_is_refused_before_the_first_step(name: str) -> None:
    torch.manual_seed(0)
    model, wrong, batch = REFUSALS[name](7)
    values = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(UnsupportedModel):
        Engine(model, wrong).clipped_sum(batch, 1.0)
    assert all(torch.equal(values[key], value) for key, value in model.state_dict().items())
