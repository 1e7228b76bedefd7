"""The script that the bare interpreter runs, started by `wavefront.sandbox.check`."""

from __future__ import annotations

import os
import sys
from types import ModuleType

HERE = os.path.dirname(os.path.abspath(__file__))
for _name, _path in (("wavefront", os.path.dirname(HERE)), ("wavefront.sandbox", HERE)):
    # Empty packages: this interpreter must not load the rest of us.
    sys.modules[_name] = ModuleType(_name)
    sys.modules[_name].__path__ = [_path]

if __name__ == "__main__":
    from wavefront.sandbox import cell

    cell.main(float(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "need")
