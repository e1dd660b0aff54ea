"""Optional packages: imported when first needed, with an error that says how to get them."""

import importlib
from types import ModuleType

from decrescendo.errors import MissingExtra

PACKAGE_OF = {
    "sklearn": "scikit-learn",
    "pooch": "pooch",
    "matplotlib": "matplotlib",
    "wordfreq": "wordfreq",
    "PIL": "pillow",
    "optuna": "optuna",
    "flwr": "flwr",
}
EXTRA_OF = {"flwr": "federated"}


def require(module: str) -> ModuleType:
    """The imported optional ``module``.

    Raises:
        MissingExtra: it is not installed; the message has the command that installs it.

    >>> require("json").dumps([1])
    '[1]'
    >>> require("no_such_module")
    Traceback (most recent call last):
    decrescendo.errors.MissingExtra: no_such_module must be installed for this, got no such package. Run
        pip install "decrescendo[tasks]"
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.split(".")[0]
        package, extra = PACKAGE_OF.get(top, module), EXTRA_OF.get(top, "tasks")
        raise MissingExtra(
            f'{package} must be installed for this, got no such package. Run pip install "decrescendo[{extra}]"'
        ) from error
