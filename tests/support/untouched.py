"""What a model looks like from outside, to be compared before and after."""

from typing import Any

from torch import nn


def portrait(model: nn.Module) -> dict[str, Any]:
    """Everything about a model that training code could notice."""
    hooks = (
        "_forward_hooks",
        "_forward_pre_hooks",
        "_backward_hooks",
        "_backward_pre_hooks",
        "_state_dict_hooks",
    )
    return {
        "modules": [(name, id(module), type(module), module.training) for name, module in model.named_modules()],
        "attributes": [sorted(vars(module)) for module in model.modules()],
        "hooks": [len(getattr(module, hook)) for module in model.modules() for hook in hooks],
        "methods": [id(type(module).forward) for module in model.modules()],
        "tensors": [
            (
                name,
                id(t),
                t.dtype,
                t.requires_grad,
                t._version,
                t.grad is None,
                len(t._backward_hooks or ()),
                vars(t),
            )
            for name, t in [*model.named_parameters(), *model.named_buffers()]
        ],
        "state": list(model.state_dict()),
    }
