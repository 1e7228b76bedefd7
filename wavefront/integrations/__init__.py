"""Integrations: wavefront inside other libraries.

`hf` is for transformers, `lm_eval` for the LM evaluation harness. It imports `lm`, `tasks` and
`evaluation`. Start reading at `hf/generation`.
"""
