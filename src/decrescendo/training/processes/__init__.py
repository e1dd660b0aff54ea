"""Processes that train one run together, and the digests by which they compare their inputs."""
