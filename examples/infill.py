"""Fill holes in a text. The model sees the text on both sides of a hole from the start."""

import wavefront

lm = wavefront.load("tale")
text = "Once upon a time there was a <mask:6>. She <mask:12>."

stream = lm.stream_infill(text, strategy="wavefront(size=4)")
for step in stream:
    tokens, known = step.canvas.tokens[0].tolist(), step.canvas.known[0].tolist()
    pairs = zip(tokens, known, strict=True)
    print("".join(lm.tokenizer.decode([token]) if final else "_" for token, final in pairs))

answer = stream.completions[0]
print(answer.text, f"({answer.finish_reason})")
