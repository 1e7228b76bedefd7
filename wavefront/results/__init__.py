"""Results: intervals, the bootstrap, paired comparison and the tables that every report shares.

It imports `core` and `storage`. Start reading at `interval` (`Interval`, `wilson_share`), then
`bootstrap`, `paired` and `table`.
"""
