"""The same plan without Flower, all clients in this process: python simulate_it.py."""

from digits.task import RECORDS, accuracy, all_records, loss, make_model, make_optimizer
from make_plan import make_plan

from decrescendo.federated import Clients, Outcome, Placement, simulate
from decrescendo.plans.plan import Plan


def run(plan: Plan, seed: int) -> Outcome:
    """Whole cohorts at once."""
    model = make_model()
    clients = Clients.equal(all_records()[0], records=RECORDS)
    return simulate(model, loss, clients, plan, make_optimizer(model), seed=seed, placement=Placement.CENTRAL)


if __name__ == "__main__":
    outcome = run(make_plan(), seed=0)
    model = make_model()
    model.load_state_dict(dict(outcome.weights))
    print(outcome.statement())
    print(f"accuracy on public digits: {accuracy(model):.3f}")
