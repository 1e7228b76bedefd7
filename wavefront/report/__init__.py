"""Report: traces and runs as one HTML file that needs nothing else (docs/report.md).

`make` reads trace files and run directories and returns the page. `run` has the layout of a run
directory, `words` and `reel` turn a trace into what the player wants, `parts` and
`assembly` write HTML; what a browser gets lies in `page/`.
"""

from wavefront.report.make import Report, make
from wavefront.report.run import Interval, Item, Run, Table, read, save

__all__ = ["Interval", "Item", "Report", "Run", "Table", "make", "read", "save"]
