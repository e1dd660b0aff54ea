"""The client app: an ordinary one, around which a node misbehaves in the rounds that the test says."""

import os
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from decrescendo.base.rng import Streams
from decrescendo.federated import Policy
from decrescendo.federated.flower import Keeper, Shard, client_app
from fedtest.problem import SEED, SHARDS, all_records, loss, make_model

torch.set_num_threads(1)
POLICY = Policy(max_clip_norm=10.0, min_noise_multiplier=0.1, max_rounds=1000)


def build(context: Context) -> Shard:
    shard = int(context.node_config["shard"])
    folder = Path(str(context.node_config["folder"]))
    # The simulator's secret, so that the test can compare; a real node gives none, and draws its own.
    keeper = Keeper(folder, list(SHARDS[shard]), POLICY, seed=Streams(SEED).child(0).seed)
    inputs, labels = all_records()
    return Shard(keeper, make_model(), loss, lambda k: (inputs[k : k + 1], labels[k : k + 1]))


honest = client_app(build)
app = ClientApp()


def fault_of(message: Message, context: Context) -> str:
    """Of this shard in this round: faults are written as "round:shard:fault", separated by spaces."""
    here = [message.metadata.group_id, str(context.node_config["shard"])]
    for told in str(context.run_config["faults"]).split():
        *where, fault = told.split(":")
        if where == here:
            return fault
    return ""


def spoil(fault: str, content: RecordDict) -> RecordDict:
    if fault == "empty":
        return RecordDict()
    arrays = {name: array.numpy().copy() for name, array in content.array_records["updates"].items()}
    answer = content.config_records["answer"]
    if fault == "huge":
        arrays = {name: value * np.float32(1e6) for name, value in arrays.items()}
    elif fault == "nan":
        arrays["0.bias"][:] = np.nan
    elif fault == "shapes":
        arrays["0.bias"] = np.zeros((len(arrays["0.bias"]), 7), np.float32)
    elif fault == "old":
        answer["round"] = int(answer["round"]) - 1
    elif fault == "twice":
        answer["clients"] = [*answer["clients"], *answer["clients"]]
        arrays = {name: np.concatenate([value, value]) for name, value in arrays.items()}
    content["updates"] = ArrayRecord({name: Array(value) for name, value in arrays.items()})
    return content


@app.train()
def train(message: Message, context: Context) -> Message:
    fault = fault_of(message, context)
    if fault in ("hang", "exit"):
        # The test sees that the round is under way, and may kill the node.
        (Path(str(context.run_config["folder"])) / f"{fault}ing").touch()
        if fault == "exit":
            os._exit(1)
        time.sleep(600)
    reply = honest(message, context)
    if not fault or reply.has_error():
        return reply
    return Message(spoil(fault, reply.content), reply_to=message)


@app.query("agree")
def agree(message: Message, context: Context) -> Message:
    return honest(message, context)
