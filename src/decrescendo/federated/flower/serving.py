"""A whole server app."""

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from decrescendo.federated.flower.drive import Deployment, drive
from decrescendo.federated.outcome import Outcome


def server_app(
    build: Callable[[Context], Deployment], finished: Callable[[Context, Outcome], None]
) -> ServerApp:
    """The server app of a federated plan.

    Args:
        build: the server and its rules, from Flower's context (``context.run_config`` has what ``flwr run`` was given).
            With a journal, a new ``flwr run`` after a crash goes on where the last one ended.
        finished: what is done with the outcome.

    Guarantee:
        that of `drive`.

    >>> app = server_app(lambda context: None, lambda context, outcome: None)
    >>> type(app).__name__
    'ServerApp'
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        finished(context, drive(grid, build(context)))

    _ = main
    return app
