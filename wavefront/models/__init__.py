"""Models: the model protocol, the loader, and the network that all families share.

Each file in `families/` is one family, `builtin/` holds the checkpoints that come with the
package, `quantize` stores weights in fewer bits, and `judge` scores texts. It imports `core`,
`storage`, `kernels` and `text`. Start reading at `protocol`, then `families/llada`.
"""
