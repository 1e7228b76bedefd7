"""Player: the web player of a recorded decode, shared by the report and the server page.

Here live its data format, its scripts and its style. It imports `traces` and `text`. Start reading
at `player_data`.
"""
