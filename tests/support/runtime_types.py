"""The type checker that the test run puts on every function of the package (see pyproject.toml, jaxtyping hook)."""

from beartype import BeartypeConf, beartype

# PEP 484's numeric tower: an int is welcome where a float is asked for.
checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
