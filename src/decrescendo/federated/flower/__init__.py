"""Federated plans on Flower: the parts that a Flower project of one's own needs. Extra ``federated``.

A server app is `server_app`, a client app `client_app`; who writes a client app of their own puts `private_mod`
around it.
"""

from decrescendo.base.extras import require

require("flwr.app")  # before the modules below import it: the error says what to install

from decrescendo.federated.flower.client import Shard, client_app  # noqa: E402
from decrescendo.federated.flower.drive import Delivery, Deployment, drive, server_app  # noqa: E402
from decrescendo.federated.flower.hosting import Hosting  # noqa: E402
from decrescendo.federated.flower.keeper import Keeper  # noqa: E402
from decrescendo.federated.flower.mod import private_mod  # noqa: E402

__all__ = [
    "server_app", "Deployment", "Delivery", "drive", "Hosting", "client_app", "Shard", "Keeper", "private_mod",
]  # fmt: skip
