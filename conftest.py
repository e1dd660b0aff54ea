"""What cannot be imported here is not collected: the Flower adapter's examples need the extra ``federated``. And no
generated test hangs on the clock."""

from importlib.util import find_spec

from hypothesis import settings

settings.register_profile("decrescendo", deadline=None)
settings.load_profile("decrescendo")

collect_ignore_glob = [] if find_spec("flwr") else ["src/decrescendo/federated/flower/*"]
