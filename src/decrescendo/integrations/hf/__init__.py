"""Hugging Face: `loss` for its models, `PrivateMixin` for its trainers. Extra ``hf``.

====================  ================================================================================
`loss`                one loss per example, of its own tokens only, for `decrescendo.train`
`loss_and_accuracy`   the same with whether its class was right, for `Telemetry`
`PrivateMixin`        before any ``transformers.Trainer`` among the bases of a class
`PrivateTrainer`      ``transformers.Trainer`` with it
`PrivateSFTTrainer`   TRL's ``SFTTrainer`` with it
====================  ================================================================================
"""

from typing import TYPE_CHECKING, Any

from decrescendo.base.extras import require
from decrescendo.integrations.hf.losses import loss, loss_and_accuracy
from decrescendo.integrations.hf.mixin import PrivateMixin

if TYPE_CHECKING:
    PrivateTrainer: Any
    PrivateSFTTrainer: Any

__all__ = ["loss", "loss_and_accuracy", "PrivateMixin", "PrivateTrainer", "PrivateSFTTrainer"]

_BASES = {"PrivateTrainer": ("transformers", "Trainer"), "PrivateSFTTrainer": ("trl", "SFTTrainer")}


def __getattr__(name: str) -> object:
    if name not in _BASES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, base = _BASES[name]
    found = type(name, (PrivateMixin, getattr(require(module), base)), {"__module__": __name__})
    globals()[name] = found
    return found
