#!/bin/bash
# opacus 1.6.0: epsilon of the RDP accountant hardly falls below log(1/delta)/63, however much noise there is, and is
# negative for a larger delta.
#
# RDPAccountant.get_epsilon tries orders up to 63 (RDPAccountant.DEFAULT_ALPHAS). The term of the conversion that does
# not depend on the noise, about log(1/delta)/(order - 1), is therefore at least 0.1 at delta = 1e-5: who asks for
# a small epsilon gets more noise than is needed, and never less than the floor. At delta = 0.01, which 100 records
# would call for, the same term is below zero, and so is the epsilon that is returned, which no mechanism has.
#
# Seen:
#     orders 1.1 .. 63
#     delta 1e-05, 100 steps at rate 0.01: noise 20: 0.1037, noise 1000: 0.1029, noise 100000: 0.1029
#     the same, with orders up to 4096:    noise 20: 0.0149, noise 1000: 0.0035, noise 100000: 0.0035
#     delta 0.01, noise 1000: -0.0085
source "$(dirname "$0")/install.bash"
install opacus==1.6.0 torch==2.13.0

python -W ignore - <<'END'
from opacus.accountants import RDPAccountant

orders = RDPAccountant.DEFAULT_ALPHAS
wide = [*orders, 64, 128, 256, 512, 1024, 4096]


def epsilon(noise, delta, alphas=None):
    accountant = RDPAccountant()
    accountant.history = [(float(noise), 0.01, 100)]
    return accountant.get_epsilon(delta=delta, alphas=alphas)


def shown(**more):
    return ", ".join(f"noise {z}: {epsilon(z, 1e-5, **more):.4f}" for z in (20, 1000, 100000))


print(f"orders {min(orders)} .. {max(orders)}")
print("delta 1e-05, 100 steps at rate 0.01:", shown())
print("the same, with orders up to 4096:   ", shown(alphas=wide))
print(f"delta 0.01, noise 1000: {epsilon(1000, 0.01):.4f}")
assert max(orders) == 63
assert epsilon(100000, 1e-5) > 0.1 > 0.004 > epsilon(100000, 1e-5, wide)
assert epsilon(1000, 0.01) < 0
END
