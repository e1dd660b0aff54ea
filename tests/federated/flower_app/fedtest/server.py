"""The server app: an ordinary one that also writes down what happened, for the test."""

import json
import os
import time
from pathlib import Path

import torch
from flwr.app import Context
from safetensors.torch import save_file

from decrescendo.federated import Outcome, Placement, Server
from decrescendo.federated.flower import Delivery, Deployment, server_app
from decrescendo.plans.plan import Plan
from fedtest.problem import SEED, make_model, make_optimizer

torch.set_num_threads(1)


def build(context: Context) -> Deployment:
    config = context.run_config
    folder = Path(str(config["folder"]))
    model = make_model()
    server = Server(
        model,
        Plan.load(folder / "plan.json"),
        make_optimizer(model),
        seed=SEED,
        placement=Placement(str(config["placement"])),
        name=str(config["name"]),
        journal=folder / "journal",
    )
    (folder / "server.pid").write_text(str(os.getpid()))

    def after(delivery: Delivery) -> None:
        report = delivery.report
        found = {
            "number": report.number,
            "cohort": report.cohort,
            "missing": report.missing,
            "verdicts": {verdict.name: count for verdict, count in report.verdicts.items()},
            "unhosted": delivery.unhosted,
            "errors": delivery.errors,
            "silent": delivery.silent,
            "seconds": delivery.seconds,
        }
        with (folder / "rounds.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        time.sleep(float(config["pause"]))

    return Deployment(server, round_timeout=float(config["round-timeout"]), start_timeout=900.0, poll=0.05, after=after)


def finished(context: Context, outcome: Outcome) -> None:
    folder = Path(str(context.run_config["folder"]))
    save_file({name: value.contiguous() for name, value in outcome.weights.items()}, folder / "weights.safetensors")
    done = {"steps": outcome.steps, "as_planned": outcome.ledger == outcome.plan.ledger}
    (folder / "done.tmp").write_text(json.dumps(done))
    (folder / "done.tmp").replace(folder / "done.json")


app = server_app(build, finished)
