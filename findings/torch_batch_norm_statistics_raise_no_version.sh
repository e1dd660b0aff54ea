#!/bin/bash
# torch 2.13.0: batch_norm in training mode writes its running statistics in place without raising their version counter.
#
# The version counter of a tensor (`_version`) is how autograd, and who follows a program, sees writes in place: copy_,
# add_, out= and a writable view each raise it by one. instance_norm, which has the same two arguments, raises it. Of
# torch.batch_norm, functional.batch_norm and nn.BatchNorm1d the statistics change and the counter stands, also for
# aten::_native_batch_norm_legit, whose schema says that they are written.
#
# Seen:
#     copy_:                         changed True, version raised by 1
#     instance_norm:                 changed True, version raised by 1 or more
#     torch.batch_norm:              changed True, version raised by 0
#     functional.batch_norm:         changed True, version raised by 0
#     nn.BatchNorm1d:                changed True, version raised by 0
#     aten::_native_batch_norm_legit: changed True, version raised by 0
source "$(dirname "$0")/install.bash"
install torch==2.13.0 numpy==2.4.6

python -W ignore - <<'END'
import torch
from torch import nn
from torch.nn import functional

x = torch.arange(24.0).reshape(4, 3, 2)
rows = x[:, :, 0].contiguous()


def copied(mean, var):
    mean.copy_(torch.ones(3))


def instances(mean, var):
    functional.instance_norm(x, mean, var, use_input_stats=True)


def torchs(mean, var):
    torch.batch_norm(rows, None, None, mean, var, True, 0.1, 1e-5, False)


def functionals(mean, var):
    functional.batch_norm(rows, mean, var, training=True)


def modules(mean, var):
    layer = nn.BatchNorm1d(3, affine=False)
    layer.running_mean, layer.running_var = mean, var
    layer(rows)


def legit(mean, var):
    torch.ops.aten._native_batch_norm_legit(rows, None, None, mean, var, True, 0.1, 1e-5)


ways = {
    "copy_": copied, "instance_norm": instances, "torch.batch_norm": torchs, "functional.batch_norm": functionals,
    "nn.BatchNorm1d": modules, "aten::_native_batch_norm_legit": legit,
}
raised = {}
for name, way in ways.items():
    mean, var = torch.zeros(3), torch.ones(3)
    before = mean._version
    way(mean, var)
    changed = not torch.equal(mean, torch.zeros(3))
    raised[name] = mean._version - before
    print(f"{name + ':':31} changed {changed}, version raised by {raised[name]}")
    assert changed
assert raised["copy_"] == 1 and raised["instance_norm"] >= 1
assert [raised[name] for name in list(ways)[2:]] == [0, 0, 0, 0]
schema = torch.ops.aten._native_batch_norm_legit.default._schema
assert [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write] == ["running_mean", "running_var"]
END
