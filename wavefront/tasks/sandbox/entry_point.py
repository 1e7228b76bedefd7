"""The script that `wavefront.tasks.sandbox.check` starts in a bare interpreter."""

from __future__ import annotations

import os
import sys
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGES = ("wavefront", "wavefront.tasks", "wavefront.tasks.sandbox")
PATHS = (os.path.dirname(os.path.dirname(HERE)), os.path.dirname(HERE), HERE)
for _name, _path in zip(PACKAGES, PATHS, strict=True):
    # Register empty packages, so that this interpreter does not import the rest of wavefront.
    sys.modules[_name] = ModuleType(_name)
    sys.modules[_name].__path__ = [_path]

if __name__ == "__main__":
    from wavefront.tasks.sandbox import supervisor

    supervisor.main(
        float(sys.argv[1]),
        int(sys.argv[2]),
        require_sandbox=sys.argv[3] != "allow-unsandboxed",
        caller=int(sys.argv[4]),
    )
