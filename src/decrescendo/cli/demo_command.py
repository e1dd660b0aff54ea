"""The command that shows what it is about."""

from pathlib import Path
from typing import Annotated

import typer

from decrescendo.cli.app import one_line_errors, out
from decrescendo.cli.options import Threads


@one_line_errors
def demo_command(
    folder: Annotated[Path, typer.Option("--out", help="Folder for the figures.")] = Path("demo-output"),
    seeds: Annotated[int, typer.Option(help="How many seeds.", min=1)] = 5,
    steps: Annotated[int, typer.Option(help="Steps of each training.", min=1)] = 200,
    threads: Threads = 1,
) -> None:
    """Spend one budget two ways on real digits.

    Beside them: plain SGD, which is not private, and constant noise with a falling rate. About a minute.

    Example: decrescendo demo --out demo --seeds 1
    """
    import torch
    from joblib import cpu_count

    from decrescendo.base.sealed import check_writable
    from decrescendo.cli.demo import demonstrate

    check_writable(folder)
    torch.set_num_threads(threads or 1)
    jobs = max(1, cpu_count() // (threads or 1))
    demonstrate(folder, out, seeds=range(seeds), steps=steps, jobs=jobs)
