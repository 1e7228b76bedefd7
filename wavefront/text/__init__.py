"""Text: tokenizers and chat templates.

Here strings become token ids, and token ids become strings. It imports `core` and `storage`.
Start reading at `tokenizer`.
"""
