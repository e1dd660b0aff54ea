"""Runs a script with observers in place: ``python -m decrescendo.doctor.runner FOLDER STEPS SCRIPT ARGUMENTS``."""

import contextlib
import importlib.util
import runpy
import sys
import traceback
from pathlib import Path

from decrescendo.doctor.events import Events
from decrescendo.doctor.flows import noises, scaled_draws
from decrescendo.doctor.neighbours import Neighbours
from decrescendo.doctor.source import MAKERS, keyword, read
from decrescendo.doctor.watch_opacus import OpacusWatch
from decrescendo.doctor.watch_peers import PeersWatch
from decrescendo.doctor.watch_torch import Enough, TorchWatch
from decrescendo.errors import FileRefused


def main(folder: Path, steps: int, script: str, arguments: list[str]) -> None:
    """Run ``script`` as its user would, until so many steps were observed."""
    events = Events(folder)
    neighbours = Neighbours(events)
    torch_watch = TorchWatch(events, neighbours, steps)
    opacus_watch = OpacusWatch(torch_watch) if importlib.util.find_spec("opacus") is not None else None
    if opacus_watch is not None:
        opacus_watch.start()
    with contextlib.suppress(FileRefused):
        sources = read(Path(script))
        for module, call in sources.calls("get_epsilon", "get_privacy_spent"):
            delta = sources.number(keyword(call, "delta") or next(iter(call.args), None))
            if delta is not None:
                events.write("asks", {"delta": delta, "file": module.file, "line": call.lineno})
        torch_watch.expected = opacus_watch is not None and any(sources.calls(*MAKERS))
        torch_watch.servers.expected = bool(noises(sources) or scaled_draws(sources))
        PeersWatch(torch_watch).start(sources)
    torch_watch.start()
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    ending = {"how": "whole", "error": ""}
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as left:
        if left.code not in (None, 0):
            ending = {
                "how": "error",
                "error": f"it ended itself with {left.code!r}; were its arguments given after --?",
            }
    except Enough:
        ending["how"] = "enough"
    except BaseException as error:
        ending = {"how": "error", "error": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    finally:
        if ending["how"] == "error":
            torch_watch.twins.outputs.add("ended", ending["error"])
        neighbours.ended()
        torch_watch.finish()
        if opacus_watch is not None:
            opacus_watch.finish()
        events.write("end", ending)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:])
