"""The engine against plain training and against other libraries: ``python -m benchmarks.engine run``, then ``page``."""
