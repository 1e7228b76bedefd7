"""The script that the bare interpreter runs, started by `wavefront.tasks.sandbox.check`."""

from __future__ import annotations

import os
import sys
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ("wavefront", "wavefront.tasks", "wavefront.tasks.sandbox")
PATHS = (os.path.dirname(os.path.dirname(HERE)), os.path.dirname(HERE), HERE)
for _name, _path in zip(PACKAGES, PATHS, strict=True):
    # Empty packages: this interpreter must not load the rest of us.
    sys.modules[_name] = ModuleType(_name)
    sys.modules[_name].__path__ = [_path]

if __name__ == "__main__":
    from wavefront.tasks.sandbox import supervisor

    supervisor.main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "need")
