"""Draw a decode while it happens, and look at its steps on the way."""

import wavefront
from wavefront.watch import watch

lm = wavefront.load()
stream = lm.stream("Tell me a story.", schedule="wavefront(size=4)", max_new_tokens=48)
sure = 0
for step in watch(stream, delay=0.03):
    # Tensors of shape (batch, places): what was committed, and the log-probability of it.
    committed = step.decision.commit
    sure += int((step.view.stats.logp[committed] > -0.7).sum())

answer = stream.completions[0]
print(f"{sure} of {len(answer.tokens)} tokens were more likely than not")
