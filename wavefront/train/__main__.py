"""`python -m wavefront.train` runs the same commands as `wavefront train`."""

from __future__ import annotations

import sys

from wavefront.train.command import main

if __name__ == "__main__":
    sys.exit(main())
