"""Text: tokenizers, chat templates and constraints.

Here strings become token ids and token ids become strings, and a schema, a pattern or a list of
choices becomes an automaton over tokens. It imports `core` and `storage`.
Start reading at `tokenizer`, then `constraint`.
"""
