"""Player: the web player for decodes, shared by the HTML report and the server's page.

This package contains its data format (`player_data`), its scripts and style (`assets`), the frame
of a standalone page (`page`) and every colour (`palette`). It imports `core`, `storage`, `text` and
`traces`. Start reading at `player_data`.
"""
