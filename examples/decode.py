"""Decode a prompt with three strategies, and see what each of them costs."""

import wavefront

lm = wavefront.load()  # a built-in model; or a directory, or a hub id such as "org/name"
for schedule in ("standard", "block(size=8)", "wavefront(size=8, radius=2)"):
    answer = lm.generate("Tell me a story.", schedule=schedule, max_new_tokens=32, steps=16)
    print(f"{schedule}: {answer.forwards} forwards, ended by {answer.finish_reason}")
    print(f"  {answer.text!r}")

filled = lm.infill("The <mask:6> jumps over the <mask:4> dog.", schedule="standard")
print(f"filled in: {filled.text!r}")
