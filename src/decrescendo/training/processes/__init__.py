"""Several processes that train one run together, and digests by which they compare what they hold."""
