"""``python -m decrescendo.cli``."""

from decrescendo.cli import main

main()
