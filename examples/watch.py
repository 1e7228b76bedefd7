"""Draw a decode while it happens, and look at its steps on the way."""

import wavefront
from wavefront.viewer import watch

lm = wavefront.load()
question = "I have a fig, two pears, and a plum. How many fruits do I have?"
stream = lm.stream(question, strategy="wavefront(size=4)", max_new_tokens=24)
committed = sure = 0
for step in watch(stream, delay=0.03):
    # Tensors of shape (batch, places): what was committed, and the log-probability of it.
    commit = step.decision.commit
    committed += int(commit.sum())
    sure += int((step.view.stats.logp[commit] > -0.1).sum())

print(stream.completions[0].text)
print(f"of {sure} of {committed} tokens the model was at least 90 % sure")
