"""The `wavefront` command line: one module per command.

It imports every other room, but only when a command runs, so help pages do not wait for torch.
Start reading at `app`, which lists the commands; `options` holds the options that they share.
"""

from wavefront.cli.app import main

__all__ = ["main"]
