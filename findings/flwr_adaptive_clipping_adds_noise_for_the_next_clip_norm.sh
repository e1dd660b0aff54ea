#!/bin/bash
# flwr 1.41.0: server-side adaptive clipping clips to one clip norm and adds noise for the next one.
#
# DifferentialPrivacyServerSideAdaptiveClipping clips the updates of a round to C_t, moves the clip norm by the noisy
# share of updates that were clipped, and only then adds noise to the mean: its standard deviation is z C_t+1 / n,
# though one client moves the mean by up to C_t / n. In Andrew et al. 2021 (arXiv 1905.03871, algorithm 1) it is
# z C_t / n. Where C falls, the noise is less than asked for, by a factor of exp(-0.1) in each round with the default
# settings while all updates are clipped; where C rises, it is more.
#
# Seen, default settings, 20 clients whose updates have ten times the initial clip norm, noise multiplier 1 asked for, which
# the class raises to 1.155 for the mean as the count is released too: the noise on the mean is 1.04 C_t / n, a tenth less
# than 1.155 C_t / n. Both generations of the class do this.
source "$(dirname "$0")/install.bash"
install flwr==1.41.0 numpy==2.4.6

python -W ignore - <<'END'
import logging
import math
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.server.strategy import DifferentialPrivacyServerSideAdaptiveClipping as Older
from flwr.server.strategy import FedAvg as OlderFedAvg
from flwr.serverapp.strategy import DifferentialPrivacyServerSideAdaptiveClipping, FedAvg

logging.getLogger("flwr").setLevel(logging.ERROR)
Z, CLIENTS, CLIP, COORDINATES, ROUNDS = 1.0, 20, 0.1, 100_000, 40
weights = np.zeros(COORDINATES)
update = np.zeros(COORDINATES)
update[0] = CLIP * 10

def messages() -> float:
    strategy = DifferentialPrivacyServerSideAdaptiveClipping(FedAvg(), Z, CLIENTS)
    strategy.current_arrays = ArrayRecord({"w": Array(weights)})
    replies = [
        Message(
            RecordDict({"arrays": ArrayRecord({"w": Array(weights + update)}), "metrics": MetricRecord({"num-examples": 1})}),
            metadata=Metadata(1, "", node + 1, 1, "", "", time.time(), 3600.0, "train"),
        )
        for node in range(CLIENTS)
    ]
    mean, _ = strategy.aggregate_train(1, replies)
    return float(mean.to_numpy_ndarrays()[0][1:].std())

def older() -> float:
    strategy = Older(OlderFedAvg(), Z, CLIENTS)
    strategy.current_round_params = [weights]
    results = [
        (None, FitRes(Status(Code.OK, ""), ndarrays_to_parameters([weights + update]), 1, {})) for _ in range(CLIENTS)
    ]
    mean, _ = strategy.aggregate_fit(1, results, [])
    return float(parameters_to_ndarrays(mean)[0][1:].std())

np.random.seed(0)
count_std = CLIENTS / 20
asked = (Z**-2 - (2 * count_std) ** -2) ** -0.5
for name, one_round in (("messages", messages), ("older", older)):
    stds = [one_round() * CLIENTS / CLIP for _ in range(ROUNDS)]  # in units of what one client moves the mean by
    seen = float(np.sqrt(np.mean(np.square(stds))))
    print(f"{name}: noise of {seen:.3f} C_t/n on the mean, where {asked:.3f} C_t/n was asked for")
    assert abs(seen / asked - math.exp(-0.2 * (1 - 0.5))) < 0.02
END
