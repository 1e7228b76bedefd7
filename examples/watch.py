"""Draw a decode while it runs, and inspect its steps."""

import wavefront
from wavefront.viewer import watch

lm = wavefront.load()
question = "I have a fig, two pears, and a plum. How many fruits do I have?"
stream = lm.stream(question, strategy="wavefront(size=4)", max_new_tokens=24)
committed = confident = 0
for step in watch(stream, delay=0.03):
    # Tensors of shape (batch, positions): what was committed, and its log-probability.
    commit = step.decision.commit
    committed += int(commit.sum())
    confident += int((step.view.stats.logp[commit] > -0.1).sum())

print(stream.completions[0].text)
print(f"the model was at least 90 % confident of {confident} of {committed} tokens")
