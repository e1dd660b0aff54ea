"""Decides noise and clip norm of the next step on rank 0 and sends them to the other ranks."""

from dataclasses import astuple

from decrescendo.base.rng import Seeds, Streams
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.loop.source import Source
from decrescendo.training.persistence.checkpoint.streams import stream_at, stream_state
from decrescendo.training.processes.world import Parts, Tree, World
from decrescendo.training.steering import Settings


def decide(source: Source, world: World, parts: Parts, streams: RunStreams, taken: int) -> Tree:
    """The message from rank 0 to all ranks about step ``taken`` + 1, with a seed of their masks.

    On rank 0 it is decided, and paid for where a filter is asked, before anything is drawn or looked at.
    """
    settings = parts.gathered(lambda: None if world.rank else source.next_settings(taken))

    def told() -> Tree:
        if settings is None:
            return {"settings": None, "stopped": source.stopped}
        noise = stream_state(streams.noise) if parts.trained else None
        masks = streams.masks() if world.size > 1 else None
        return {"settings": list(astuple(settings)), "stopped": "", "masks": masks, "noise": noise}

    return world.draw(told)


def follow(decided: Tree, source: Source, world: World, streams: RunStreams, masks: Seeds) -> Settings | None:
    """The settings in a message of `decide`, ``None`` at the end. Sources of other ranks take them over, and
    the streams of every rank move to the positions sent."""
    granted = decided["settings"]
    settings = None if granted is None else Settings(*granted)
    if world.rank:
        source.follow(settings, decided["stopped"])
    if world.size > 1 and granted is not None:
        masks.stream = Streams(decided["masks"]).child(world.rank).numpy("model")
        if decided["noise"] is not None:
            streams.noise = stream_at(streams.noise, decided["noise"])
    return settings
