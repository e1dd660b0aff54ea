"""A run whose unit is a client: the simulated federation in place of central training."""

from collections.abc import Callable

from torch import nn

from decrescendo import Plan, Run
from decrescendo.federated import Clients, Placement, simulate
from decrescendo.optim import averaged
from decrescendo.training import Progress, cross_entropy, decay_scheduler, make_optimizer
from decrescendo_papers.data import Dataset
from decrescendo_papers.experiments.spec import Spec


def fit_clients(
    spec: Spec,
    plan: Plan,
    data: Dataset,
    model: nn.Module,
    callback: Callable[[Progress], None],
) -> tuple[Run, nn.Module]:
    """Train ``model`` in place over clients of ``spec.records`` rows each, noise at the server: what `tasks.fit` is for
    rows. With one row a client the weights are the same bits as without clients.

    Returns:
        The run, and the model to test: the average where there is one.
    """
    optimizer = make_optimizer(model, spec.optimizer, spec.learning_rate, spec.momentum)
    scheduler = decay_scheduler(optimizer, spec.lr_decay, plan.steps)
    average = averaged(model, decay=spec.averaging) if spec.averaging else None

    def after_round(state: Progress) -> None:
        scheduler.step()
        if average is not None:
            average.update_parameters(model)
        callback(state)

    outcome = simulate(
        model, cross_entropy, Clients.equal(data.train, spec.records), plan, optimizer, seed=spec.seed,
        placement=Placement.CENTRAL, callback=after_round,
    )  # fmt: skip
    return outcome.to_run(), model if average is None else average.module
