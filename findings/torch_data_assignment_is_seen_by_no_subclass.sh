#!/bin/bash
# torch 2.13.0: `plain.data = x` tells neither the __torch_function__ nor the __torch_dispatch__ of x, a tensor subclass.
#
# A subclass is how one follows what a program makes of some tensors (private rows, quantised weights, traces). Copies by
# torch.tensor(x), torch.Tensor(x) and plain.new_tensor(x) tell no __torch_function__, and torch.overrides lists two of
# them as such; operations that they do are still told, by __torch_dispatch__. Assigned to the `.data` of a plain tensor
# x leaves without a word: the plain tensor has its memory and values, and its version counter stands where it stood. The
# other way round, `x.data = plain`, is told.
#
# Seen:
#     clone:      function, dispatch
#     tensor:     dispatch
#     Tensor:     dispatch
#     new_tensor: dispatch
#     data:       nothing; same memory True, version before and after 0 0
source "$(dirname "$0")/install.bash"
install torch==2.13.0 numpy==2.4.6

python -W ignore - <<'END'
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

told = set()


class Followed(Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if not isinstance(func, torch._ops.OpOverload):  # an operation that the mode below does, not a function called here
            told.add("function")
        return super().__torch_function__(func, types, args, kwargs or {})


class Operations(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        told.add("dispatch")
        return func(*args, **(kwargs or {}))


def seen(what):
    told.clear()
    with Operations():
        made = what()
    return sorted(told, reverse=True), made


x = torch.arange(3.0).as_subclass(Followed)
plain = torch.zeros(3)
before = plain._version
ways = {
    "clone": lambda: x.clone(),
    "tensor": lambda: torch.tensor(x),
    "Tensor": lambda: torch.Tensor(x),
    "new_tensor": lambda: plain.new_tensor(x),
    "data": lambda: setattr(plain, "data", x),
}
found = {}
for name, way in ways.items():
    found[name], made = seen(way)
    if name != "data":
        print(f"{name + ':':11} {', '.join(found[name])}")
        assert torch.equal(torch.as_tensor(made.tolist()), torch.arange(3.0))
same = plain.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
print(f"data:       {', '.join(found['data']) or 'nothing'}; same memory {same}, version before and after {before} {plain._version}")
assert type(plain) is Tensor and plain.tolist() == [0.0, 1.0, 2.0] and same and plain._version == before
assert found == {
    "clone": ["function", "dispatch"], "tensor": ["dispatch"], "Tensor": ["dispatch"], "new_tensor": ["dispatch"], "data": [],
}
told.clear()
x.data = torch.zeros(3)
assert told == {"function"}
assert {torch.tensor, Tensor.new_tensor} <= torch.overrides.get_ignored_functions()
END
