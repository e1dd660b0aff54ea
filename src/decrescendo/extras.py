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
}


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
        package = PACKAGE_OF.get(module.split(".")[0], module)
        raise MissingExtra(
            f'{package} must be installed for this, got no such package. Run pip install "decrescendo[tasks]"'
        ) from error
