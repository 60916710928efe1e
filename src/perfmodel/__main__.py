"""``python -m perfmodel``."""

from perfmodel.cli import main

main()
