"""Model families, one per file: its config keys, its weight names, and its differences.

A family is found by the checkpoint's `architectures`, then by its `model_type`. It imports the
modules of `models`. Start reading at `llada`.
"""
