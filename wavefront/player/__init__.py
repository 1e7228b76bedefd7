"""Player: the web player of a decode, shared by the HTML report and the server's page.

Here live its data format (`player_data`), its scripts and style (`assets`), the frame of a
standalone page (`page`) and every colour (`palette`). It imports `core`, `storage`, `text` and
`traces`. Start reading at `player_data`.
"""
