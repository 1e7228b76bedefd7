"""Text: tokenizers and chat templates.

Here strings become token ids and back. It imports `core` and `storage`. Start reading at
`tokenizer`.
"""
