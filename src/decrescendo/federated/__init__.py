"""Clients instead of examples: one plan for a server with real clients, and for a simulation of a million."""

from decrescendo.federated.clients import Clients, Records
from decrescendo.federated.messages import Opened, Reply, Round, run_id
from decrescendo.federated.outcome import Outcome
from decrescendo.federated.placement import Placement
from decrescendo.federated.policy import Memory, Policy
from decrescendo.federated.server import Server
from decrescendo.federated.simulation import client_streams, simulate
from decrescendo.federated.threats import local_guarantee, server_guarantee
from decrescendo.federated.units import group_epsilon, most_clients
from decrescendo.federated.update import LocalSteps, client_update, client_values, clip_update, prepare
from decrescendo.federated.verdict import Received, RoundReport, Verdict

__all__ = [
    "Placement", "Server", "Opened", "Round", "Reply", "run_id", "Received", "RoundReport", "Verdict", "Outcome",
    "Policy", "Memory", "LocalSteps", "client_update", "client_values", "clip_update", "prepare", "local_guarantee",
    "server_guarantee", "Clients", "Records", "simulate", "client_streams", "group_epsilon", "most_clients",
]  # fmt: skip
