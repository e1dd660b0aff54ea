"""``python -m decrescendo``."""

from decrescendo.cli import main

main()
