"""Rank 0 decides z_t and C_t of the next step; `follow` applies them on every rank."""

from dataclasses import astuple

from decrescendo.base.rng import Seeds, Streams
from decrescendo.training.loop.drawing import RunStreams
from decrescendo.training.persistence.checkpoint.streams import stream_at, stream_state
from decrescendo.training.processes.world import Parts, Tree, World
from decrescendo.training.steering import Settings
from decrescendo.training.steering.source import Source


def decide(source: Source, world: World, parts: Parts, streams: RunStreams, taken: int) -> Tree:
    """Rank 0's message for step ``taken`` + 1: settings, noise position, dropout seed.

    Rank 0 fixes (and charges to the privacy filter, if any) the settings before the batch is drawn.
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
    """Apply a message of `decide` on this rank: set its source, noise and dropout streams. Returns the settings,
    ``None`` at the end of the run."""
    granted = decided["settings"]
    settings = None if granted is None else Settings(*granted)
    if world.rank:
        source.follow(settings, decided["stopped"])
    if world.size > 1 and granted is not None:
        masks.stream = Streams(decided["masks"]).child(world.rank).numpy("model")
        if decided["noise"] is not None:
            streams.noise = stream_at(streams.noise, decided["noise"])
    return settings
