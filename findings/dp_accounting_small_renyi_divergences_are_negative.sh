#!/bin/bash
# dp-accounting 0.6.0: RdpAccountant's divergences at whole orders are right absolutely, not relatively: to 1e-22 a step.
#
# For many steps that each cost next to nothing that is more than all there is. Divergences come out negative, which the
# accountant reads as no loss at all: delta is then 0, with a line in absl's log. At order 2 the divergence is
# log(1 + q^2 (exp(1/z^2) - 1)). A lower bound on delta(0), the total variation, is that of one test: whether the sum of
# all outputs is above half its mean.
#
# Seen, for 1e8 steps at rate 1e-7 and noise multiplier 1e4:
#     order 2: -6.9e-15, by its formula 1.0e-14
#     delta at epsilon 0: 0.0 by RdpAccountant, at least 3.99e-08 by one test
source "$(dirname "$0")/install.bash"
install dp-accounting==0.6.0

python -W ignore - 2>/dev/null <<'END'
import math

import dp_accounting
import numpy as np
from dp_accounting import rdp
from scipy.stats import binom, norm

RATE, NOISE, STEPS = 1e-7, 1e4, 10**8
renyi = rdp.RdpAccountant()
renyi.compose(
    dp_accounting.SelfComposedDpEvent(
        dp_accounting.PoissonSampledDpEvent(RATE, dp_accounting.GaussianDpEvent(NOISE)), STEPS
    )
)
found = float(renyi._rdp[list(renyi._orders).index(2)])
truth = STEPS * math.log1p(RATE**2 * math.expm1(NOISE**-2))
# The sum of T outputs is normal with standard deviation z sqrt(T), about the number of steps that the record is in.
deviation, middle = NOISE * math.sqrt(STEPS), RATE * STEPS / 2
taken = np.arange(80)
with_record = binom.pmf(taken, STEPS, RATE) @ norm.sf((middle - taken) / deviation)
at_least = with_record - norm.sf(middle / deviation)
delta = renyi.get_delta(0.0)
print(f"order 2: {found:.2g}, by its formula {truth:.2g}")
print(f"delta at epsilon 0: {delta} by RdpAccountant, at least {at_least:.3g} by one test")
assert abs(found - truth) > 0.2 * truth
assert delta == 0.0 and at_least > 3e-8
END
