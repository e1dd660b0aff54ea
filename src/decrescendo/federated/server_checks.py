"""What a federated run must be given: asked before its first round."""

import torch
from torch import nn

from decrescendo.accounting import Unit
from decrescendo.base.rng import Secure
from decrescendo.clipping.clipped import check_clip_norm, trainable
from decrescendo.clipping.inventory import Inventory
from decrescendo.clipping.telemetry import Telemetry
from decrescendo.errors import InvalidValue, check_instance
from decrescendo.federated.placement import Placement
from decrescendo.optim.apply import check_optimizer
from decrescendo.plans.plan import Plan
from decrescendo.plans.sampling_refusals import poisson, uncut
from decrescendo.training.run import check_published
from decrescendo.training.store import Store


def check_given(
    model: nn.Module,
    plan: Plan,
    optimizer: torch.optim.Optimizer,
    seed: int | Secure,
    placement: Placement,
    store: Store | None,
    telemetry: Telemetry | None,
) -> None:
    """Refuse what `Server` says that it refuses."""
    if telemetry is not None:
        _check_telemetry(telemetry, Placement(placement))
    check_instance("optimizer", optimizer, torch.optim.Optimizer)
    check_unit(plan)
    check_clip_norm("clip_norm", float(plan.clip_norm.min()))
    if plan.correlation is None:
        poisson(plan.sampling, "a federated run")
    elif Placement(placement) is not Placement.CENTRAL:
        raise InvalidValue(
            f"correlated noise must be added by the server, got placement={placement} and bands={plan.bands}: no "
            "client knows the noise of earlier rounds. Use Placement.CENTRAL, or calibrate with bands=1"
        )
    if Placement(placement) is not Placement.CENTRAL:
        uncut(plan.sampling, f"a run with {placement} noise")
    if store is not None:
        _check_store(store, seed, Placement(placement))
    check_optimizer(optimizer, Inventory.of(model), trainable(model))  # before a round is spent on finding out
    check_published(model)


def check_unit(plan: Plan) -> None:
    """Refuse a plan that protects something else than clients."""
    if plan.budget.unit is not Unit.CLIENT:
        raise InvalidValue(
            f"a federated plan must protect clients, got unit={plan.budget.unit}. "
            "Calibrate with Budget(epsilon, delta, Unit.CLIENT) and the number of clients as dataset_size"
        )


def _check_telemetry(telemetry: Telemetry, placement: Placement) -> None:
    if placement is not Placement.CENTRAL:
        raise InvalidValue(
            "telemetry of a federated run (a ClipController has it too) must be in Placement.CENTRAL, got "
            f"{telemetry} and placement={placement}: only a server that sees each update knows its norm. Take the plan "
            "alone"
        )


def _check_store(store: Store, seed: int | Secure, placement: Placement) -> None:
    check_instance("store", store, Store, "Store(path) opens one, Store.create(path, budget, ..) makes it")
    if placement is Placement.LOCAL:
        raise InvalidValue(
            "a run in a store must keep its plan's promise, got the placement local, which promises something else: "
            "each client's own epsilon"
        )
    if not isinstance(seed, Secure):
        raise InvalidValue(
            "seed must be Secure() with a store, got a number: runs with one seed have the same cohorts and noise, and "
            "what a store adds up is drawn independently"
        )
