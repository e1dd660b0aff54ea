"""What every test shares: one torch thread, so that parallel test processes do not fight over the cores."""

import torch

torch.set_num_threads(1)
