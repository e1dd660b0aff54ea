"""Optional packages: imported when first needed, with an error that says how to get them."""

import importlib
from types import ModuleType

from decrescendo.errors import MissingExtra

# Packages whose name differs from the module's.
PACKAGE_OF = {"PIL": "pillow", "sklearn": "scikit-learn"}
EXTRA_OF = {
    "flwr": "federated",
    "matplotlib": "plots",
    "starlette": "studio",
    "transformers": "hf",
    "trl": "hf",
    "uvicorn": "studio",
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
        pip install no_such_module
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        top = module.split(".")[0]
        package = PACKAGE_OF.get(top, top)
        wanted = f'"decrescendo[{EXTRA_OF[top]}]"' if top in EXTRA_OF else package
        raise MissingExtra(
            f"{package} must be installed for this, got no such package. Run pip install {wanted}"
        ) from error
