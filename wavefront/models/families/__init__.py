"""Model families, one per file: a config map, a weight-name map, and what is peculiar.

A family is found by the checkpoint's `model_type`. It imports the modules of `models`. Start
reading at `llada`.
"""
