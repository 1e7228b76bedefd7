"""Fill holes in a text. The model sees the text on both sides of a hole from the start."""

import wavefront

lm = wavefront.load("tale")
text = "Once upon a time there was a <mask:6>. She <mask:12>."

stream = lm.stream_infill(text, strategy="wavefront(size=4)")
for step in stream:
    (position,) = step.decision.commit[0].nonzero().flatten().tolist()
    token = int(step.canvas.tokens[0, position])
    print(f"step {step.number}: {lm.tokenizer.decode([token])!r} at position {position}")

answer = stream.completions[0]
print(answer.text, f"({answer.finish_reason})")
