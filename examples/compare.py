"""Answer held-out problems with three strategies, and print accuracy and cost."""

from random import Random

import wavefront
from wavefront import tasks

lm = wavefront.load("ripple")
task = tasks.load("boolean_expressions")
rng = Random(4)
samples = [task.sample(rng, split="held-out") for _ in range(4)]
prompts = [sample.prompt for sample in samples]

print(f"{'strategy':<28} right   forwards")
for strategy in ("standard", "wavefront(size=8, radius=2)", "dsb(size=16)"):
    answers = lm.generate(prompts, strategy=strategy, max_new_tokens=24, eos="defer")
    graded = [task.grade(*pair) for pair in zip(samples, (a.text for a in answers), strict=True)]
    right = sum(grade.correct for grade in graded)
    mean = sum(answer.forwards for answer in answers) / len(answers)
    print(f"{strategy:<28} {right} of {len(samples)}  {mean:>8.1f}")
