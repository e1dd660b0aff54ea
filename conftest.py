"""What cannot be imported here is not collected: the Flower adapter's examples need the extra ``federated``."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("flwr") else ["src/decrescendo/federated/flower/*"]
