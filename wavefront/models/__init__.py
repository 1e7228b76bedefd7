"""Models: the model protocol, the loader, and the network that all families share.

One family per file in `families/`; built-in checkpoints in `builtin/`. It imports `core`, `storage`,
`kernels` and `text`. Start reading at `protocol`, then `families/llada`.
"""
