"""Which operations the time goes to, ours against plain training: for those who tune the engine."""

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine.contenders import CONTENDERS, Setting
from benchmarks.engine.timing import synchronise, warm_up
from benchmarks.engine.workloads import workloads

_STEPS = 5


def show(workload: str, names: list[str], device: torch.device, rows: int) -> None:
    """Print a table of the costliest operations for each contender, in time a step."""
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
    for name in names:
        step = CONTENDERS[name].make(Setting(workloads(device)[workload], device))
        warm_up(step, device)
        with profile(activities=activities) as seen:
            for _ in range(_STEPS):
                step.step()
            synchronise(device)
        table = [
            (event.self_device_time_total if device.type == "cuda" else event.self_cpu_time_total, event)
            for event in seen.key_averages()
        ]
        total = sum(own for own, _ in table) / _STEPS
        print(f"\n{workload}, {name}: {total / 1e3:.2f} ms a step inside operations, of which")
        for own, event in sorted(table, key=lambda pair: -pair[0])[:rows]:
            print(f"{own / _STEPS / 1e3:9.2f} ms {event.count / _STEPS:8.1f} calls  {event.key}")
