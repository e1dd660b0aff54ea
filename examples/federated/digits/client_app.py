"""A node: some of the clients, their limits, and the folder that remembers for them."""

from flwr.app import Context
from torch import Tensor

from decrescendo.federated import Policy
from decrescendo.federated.flower import Keeper, Shard, client_app
from digits.task import CLIENTS, RECORDS, all_records, loss, make_model

# The clients' own limits, whatever a server asks for: C_t at most 1, z_t at least 0.5, 100 rounds in a life.
POLICY = Policy(max_clip_norm=1.0, min_noise_multiplier=0.5, max_rounds=100)


def build(context: Context) -> Shard:
    """Every shards-th client from ``shard`` on lives here: what ``--node-config`` says."""
    config = context.node_config
    here = range(int(config["shard"]), CLIENTS, int(config["shards"]))
    inputs, labels = all_records()[0]

    def records(client: int) -> tuple[Tensor, Tensor]:
        rows = slice(client * RECORDS, (client + 1) * RECORDS)
        return inputs[rows], labels[rows]

    return Shard(Keeper(str(config["folder"]), here, POLICY), make_model(), loss, records)


app = client_app(build)
