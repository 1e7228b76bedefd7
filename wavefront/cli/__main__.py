"""`python -m wavefront.cli`, where the console script is not installed."""

from wavefront.cli import main

main()
