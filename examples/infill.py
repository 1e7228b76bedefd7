"""Fill holes in a text. The model sees the text on both sides of a hole from the start."""

import wavefront

lm = wavefront.load("ripple")
text = "Ivy reads 24 * 9 = <mask:3> pages.\n304 - 216 = <mask:2> pages are left.\n#### <mask:2>"

stream = lm.stream_infill(text, strategy="wavefront(size=4)")
for step in stream:
    (position,) = step.decision.commit[0].nonzero().flatten().tolist()
    token = int(step.canvas.tokens[0, position])
    print(f"step {step.number}: {lm.tokenizer.decode([token])!r} at position {position}")

print(stream.completions[0].text)
