"""Decode a prompt with three strategies, and print what each of them costs."""

import wavefront

lm = wavefront.load()  # a built-in model; or a directory, or a Hub id such as "org/name"
question = "I have a fig, two pears, and a plum. How many fruits do I have?"
for strategy in ("standard", "block(size=8)", "wavefront(size=8, radius=2)"):
    answer = lm.generate(question, strategy=strategy, max_new_tokens=24, eos="defer")
    print(f"{strategy}: {answer.forwards} forwards, ended by {answer.finish_reason}")
    print(f"  {answer.text!r}")
