"""The command line. Nothing here imports torch before a command needs it: help is instant."""

from wavefront.cli.app import main

__all__ = ["main"]
