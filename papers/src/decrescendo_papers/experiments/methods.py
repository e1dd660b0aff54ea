"""The methods that the tables compare, as rows without numbers."""

from decrescendo_papers.experiments.table import Row

# The values that the authors of dynamic DP-SGD released with their program (for MNIST at a claimed 0.4). They are used
# everywhere here: a stated rule instead of a search on the test set.
RHO_MU, RHO_C = 1.25, 3.3

VANILLA = Row("vanilla", "vanilla DP-SGD", (), {"method": "constant"})
GROWING_MU = Row("growing-mu", "growing mu", (), {"method": "growing-mu", "rho_mu": RHO_MU})
SENSITIVITY_DECAY = Row("sensitivity-decay", "sensitivity decay", (), {"method": "sensitivity-decay", "rho_c": RHO_C})
DYNAMIC = Row("dynamic", "dynamic", (), {"method": "dynamic", "rho_mu": RHO_MU, "rho_c": RHO_C})

# Baselines with noise decay. The decays' parameters are not reported: the noise falls by the factor by which mu grows.
ZCDP = Row(
    "zcdp", "rho-zCDP-SGD (exponential noise decay)", (),
    {"method": "exponential-decay", "rho_mu": RHO_MU}, accountant="zcdp",
    certified_label="exponential noise decay, calibrated by Pld",
)  # fmt: skip
TCDP = Row(
    "tcdp", "tCDP-SGD (time-based noise decay)", (),
    {"method": "time-decay", "rho_mu": RHO_MU}, accountant="tcdp",
    certified_label="time-based noise decay, calibrated by Pld",
)  # fmt: skip
# Yu et al.'s own protocol: noise 10 in the first epoch, falling by e^0.0138 an epoch, until the budget is spent. Both
# numbers are their program's for MNIST (github.com/git-disl/DP_modelpublishing, commit 1b151bf, dp_mnist.py), which
# takes the exponential of the four decays that it knows. 200 epochs are more than any budget of Table 1 allows.
STOPPED = Row(
    "zcdp-stopped", "sigma_0 = 10 and k = 0.0138, until spent", (),
    {"method": "exponential-decay", "noise": 10.0, "noise_decay": 0.0138, "epochs": 200}, accountant="zcdp",
    base=ZCDP.key,
)  # fmt: skip

# Controls that the paper lacks: constant noise and clip, with what else makes steps smaller or smoother.
LINEAR = Row(
    "vanilla-linear", "vanilla, learning rate falling to zero", (), {"method": "constant", "lr_decay": "linear"},
    control=True,
)  # fmt: skip
# Momentum 0.5 with half the rate moves as far in total as no momentum with the whole.
MOMENTUM = Row(
    "vanilla-momentum", "vanilla, momentum 0.5, half the rate", (),
    {"method": "constant", "momentum": 0.5, "rate_factor": 0.5},
    control=True,
)  # fmt: skip
# A moving clip norm is smaller on average. So: constant noise and clipping at the clip norm where the schedule ends, or
# at the geometric mean of where it starts and ends.
END_CLIP = Row(
    "vanilla-end-clip", "vanilla, clip norm C_0 / rho_c", (), {"method": "constant", "clip_factor": 1 / RHO_C},
    control=True,
)  # fmt: skip
MEAN_CLIP = Row(
    "vanilla-mean-clip", "vanilla, clip norm C_0 / sqrt(rho_c)", (),
    {"method": "constant", "clip_factor": RHO_C**-0.5},
    control=True,
)  # fmt: skip
