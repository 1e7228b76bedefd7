"""Where the tools of others come in: lm-eval, and BERTScore as its authors define it.

`adapter` is the model that lm-eval runs (extra `lm-eval`), `task_files` writes tasks for it,
`likelihood` has the log-likelihoods of LLaDA and Dream, and `bertscore` scores texts (extra
`bertscore`). Nothing is imported here: each needs packages that the others do not.
"""
