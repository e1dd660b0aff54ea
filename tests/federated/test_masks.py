"""A model's own random numbers come from a stream of the round, or of the client; never from a global one."""

from pathlib import Path

import pytest
import torch
from torch import nn

from decrescendo.base.rng import Secure
from decrescendo.federated import Clients, LocalSteps, Placement, client_update, simulate

from .conftest import loss, make_model, make_plan, records

LOCAL = {"one": None, "several": LocalSteps(0.1, epochs=2, batch_size=1)}


def dropping() -> nn.Module:
    return nn.Sequential(nn.Dropout(0.3), *make_model())


def bits(model: nn.Module) -> bytes:
    return b"".join(value.numpy().tobytes() for value in model.state_dict().values())


def simulated(
    local: LocalSteps | None,
    seed: int | Secure,
    start: int,
    each: int = 2,
    journal: Path | None = None,
    until: int = 9,
) -> bytes:
    model = dropping()
    clients = Clients.equal(records(40 * each), records=each)
    torch.manual_seed(start)
    before = torch.get_rng_state()
    simulate(
        model, loss, clients, make_plan(), torch.optim.SGD(model.parameters(), lr=0.5), seed=seed,
        placement=Placement.CENTRAL, local=local, journal=journal, callback=lambda state: state.step == until,
    )  # fmt: skip
    assert torch.equal(torch.get_rng_state(), before)
    return bits(model)


@pytest.mark.parametrize("each", [1, 2])
@pytest.mark.parametrize("local", LOCAL)
def test_the_global_generator_is_neither_read_nor_moved(local: str, each: int) -> None:
    found = [simulated(LOCAL[local], seed, start, each) for seed, start in ((3, 0), (3, 7), (4, 0))]
    assert found[0] == found[1] != found[2]
    assert simulated(LOCAL[local], Secure(), 0, each) != simulated(LOCAL[local], Secure(), 0, each)


def test_a_run_that_goes_on_from_its_journal_has_the_masks_of_its_rounds(tmp_path: Path) -> None:
    whole = simulated(None, 3, 0)
    simulated(None, 3, 1, journal=tmp_path / "run", until=2)
    assert simulated(None, 3, 2, journal=tmp_path / "run") == whole


@pytest.mark.parametrize("local", LOCAL)
def test_a_client_draws_for_itself(local: str) -> None:
    """Two clients of one process: what the first draws says nothing of the masks of the second."""
    model, rows = dropping(), records(30)

    def update(**named: int) -> list[float]:
        torch.manual_seed(0)
        before = torch.get_rng_state()
        found = client_update(model, loss, rows, LOCAL[local], **named)
        assert torch.equal(torch.get_rng_state(), before)
        return torch.cat([value.flatten() for value in found.values()]).tolist()

    assert update() != update()
    assert update(seed=5) == update(seed=5) != update(seed=6)
