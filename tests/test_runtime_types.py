"""That `make test-slow` checks types and shapes: a wrong one is seen."""

import jaxtyping
import pytest
import torch

from decrescendo.clipping.rules.patches import Geometry, unfold

GEOMETRY = Geometry(kernel=(2,), stride=(1,), dilation=(1,), pad=(0, 0), groups=1)


@pytest.fixture(autouse=True)
def _checked(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("jaxtyping_packages"):
        pytest.skip("types are not checked in this run")


@pytest.mark.slow
@pytest.mark.parametrize("wrong", [torch.ones(3), torch.ones(1, 1, 3, dtype=torch.int64), "images"])
def test_a_wrong_shape_is_seen(wrong: object) -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        unfold(wrong, GEOMETRY)


@pytest.mark.slow
def test_the_fields_of_a_dataclass_are_looked_at() -> None:
    with pytest.raises(jaxtyping.TypeCheckError):
        Geometry(kernel=2, stride=(1,), dilation=(1,), pad=(0, 0), groups=1)
