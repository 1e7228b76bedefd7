"""Results: statistics and tables that every report shares.

Here live intervals, the bootstrap, paired comparison and result tables. It imports `core` and
`storage`. Start reading at `bootstrap`.
"""
