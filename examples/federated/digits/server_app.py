"""The server: a plan, an optimiser, a journal; the rounds are `decrescendo.federated.flower.drive`."""

from pathlib import Path

from flwr.app import Context
from safetensors.torch import save_file

from decrescendo.base.rng import Secure
from decrescendo.federated import Outcome, Placement, Server
from decrescendo.federated.flower import Deployment, server_app
from decrescendo.plans.plan import Plan
from digits.task import accuracy, make_model, make_optimizer


def build(context: Context) -> Deployment:
    """The server of this run; with the same folder, a run that was killed goes on."""
    config = context.run_config
    model = make_model()
    server = Server(
        model,
        Plan.load(Path(str(config["plan"]))),
        make_optimizer(model),
        seed=Secure(),  # cohorts and noise that nobody can predict; a journal goes on with its own
        placement=Placement(str(config["placement"])),
        name=str(config["name"]),
        journal=Path(str(config["folder"])) / "journal",
    )
    return Deployment(
        server,
        round_timeout=float(config["round-timeout"]),
        start_timeout=float(config["start-timeout"]),
    )


def finished(context: Context, outcome: Outcome) -> None:
    """What may be published: the weights, and the statement."""
    folder = Path(str(context.run_config["folder"]))
    save_file(dict(outcome.weights), folder / "weights.safetensors")
    model = make_model()
    model.load_state_dict(dict(outcome.weights))
    text = f"{outcome.statement()}\naccuracy on public digits: {accuracy(model):.3f}\n"
    (folder / "statement.txt").write_text(text)
    print(text)


app = server_app(build, finished)
