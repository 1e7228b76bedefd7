"""Run the command line with `python -m wavefront.cli`."""

from wavefront.cli import main

main()
