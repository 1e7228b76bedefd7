"""`python -m wavefront`: the command line."""

from wavefront.cli import main

main()
