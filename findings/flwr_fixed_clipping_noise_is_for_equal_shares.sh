#!/bin/bash
# flwr 1.41.0: central privacy with fixed clipping adds noise for a client's equal share of the mean, and takes the mean with
# unequal shares.
#
# DifferentialPrivacyServerSideFixedClipping clips each update to C and lets FedAvg average them with weights in proportion to
# the numbers of examples that clients report, which is FedAvg's default. The noise on the mean has the standard deviation
# z C / n, enough where every client has weight 1/n. A client with weight w moves the mean by w C, so that the noise multiplier
# in force is z / (n w). Nothing is said. With an accountant, new in this version and off by default, unequal weights are
# refused; without one they are not, and neither documentation nor examples say that the numbers must be equal.
#
# Seen, 20 clients, noise multiplier 1 asked for; one client reports 100, 1,000 or 10,000 examples and the others 100: whether it
# takes part moves the mean by 1.0, 6.9 or 16.9 standard deviations of the noise, where a noise multiplier of 1 allows 1.
source "$(dirname "$0")/install.bash"
install flwr==1.41.0 numpy==2.4.6

python -W ignore - <<'END'
import logging
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg

logging.getLogger("flwr").setLevel(logging.ERROR)
Z, CLIENTS, CLIP, COORDINATES = 1.0, 20, 0.5, 100_000
weights = np.zeros(COORDINATES)
tiny = np.zeros(COORDINATES)
tiny[1] = 1e-9 * CLIP


def mean_of(examples, first):
    """The released mean, of a client whose update is ``first`` and of others that hardly have one."""
    strategy = DifferentialPrivacyServerSideFixedClipping(FedAvg(), Z, CLIP, CLIENTS)
    strategy.current_arrays = ArrayRecord({"w": Array(weights)})
    replies = []
    for node in range(CLIENTS):
        update = first if node == 0 else tiny
        content = {
            "arrays": ArrayRecord({"w": Array(weights + update)}),
            "metrics": MetricRecord({"num-examples": examples if node == 0 else 100}),
        }
        replies.append(Message(RecordDict(content), metadata=Metadata(1, "", node + 1, 1, "", "", time.time(), 3600.0, "train")))
    mean, _ = strategy.aggregate_train(1, replies)
    return mean.to_numpy_ndarrays()[0]


seen = []
for examples in (100, 1_000, 10_000):
    long = np.zeros(COORDINATES)
    long[0] = 1000 * CLIP  # clipped to C by the server
    np.random.seed(0)
    without = mean_of(examples, tiny)
    np.random.seed(0)  # the same noise: the difference is what the client moves
    moved = np.linalg.norm(mean_of(examples, long) - without)
    seen.append(float(moved / without.std()))
    print(f"{examples} examples: the client moves the mean by {seen[-1]:.1f} standard deviations of the noise")
assert all(abs(at / expected - 1) < 0.03 for at, expected in zip(seen, (1.0, 6.9, 16.9)))
END
