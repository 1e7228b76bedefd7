"""wavefront in the LM evaluation harness (lm-eval).

`register` makes the model `wavefront` known to lm-eval; task files that `wavefront lm-eval` writes
call `process_results`. Both names are public and stable. `adapter` is the model, `likelihood` has
the log-likelihoods of LLaDA and Dream, and `task_files` writes tasks. Install the extra `lm-eval`.
"""

from wavefront.integrations.lm_eval.command import register
from wavefront.integrations.lm_eval.grading import process_results

__all__ = ["process_results", "register"]
