"""Decode inside transformers: with a LLaDA checkpoint, and with an ordinary masked LM."""

from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForMaskedLM

import wavefront.integrations.hf  # registers LLaDA and Dream with the Auto classes
from wavefront.storage.hub import builtin_checkpoints

# The built-in model has the same layout as "GSAI-ML/LLaDA-8B-Instruct".
path = builtin_checkpoints()["ripple"]
model = AutoModel.from_pretrained(path)
tokenizer = AutoTokenizer.from_pretrained(path)
prompt = tokenizer.apply_chat_template(
    [{"role": "user", "content": "Sam has 3 bags of 4 figs and eats 2. How many are left?"}],
    return_tensors="pt",
    return_dict=True,
)
found = model.generate(
    **prompt,
    custom_generate=wavefront.integrations.hf.generate,
    strategy="wavefront(size=8, radius=2)",
    max_new_tokens=48,
    return_dict_in_generate=True,
)
answer = found.sequences[0, prompt["input_ids"].shape[1] :]
print(tokenizer.decode(answer, skip_special_tokens=True))
print(f"{found.forwards} forwards, {found.tokens_per_forward.item():.1f} tokens in each")

# A streamer draws the decode: final text stays, and every step replaces the draft after it.
streamer = wavefront.integrations.hf.WaveStreamer(tokenizer, skip_prompt=True)
model.generate(**prompt, max_new_tokens=32, streamer=streamer)

# A masked LM has no `generate`; `enable` adds it. Random weights need no download.
torch.manual_seed(0)
sizes: Any = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
config = BertConfig(vocab_size=len(tokenizer), intermediate_size=128, **sizes)
bert = wavefront.integrations.hf.enable(
    BertForMaskedLM(config), mask_id=tokenizer.convert_tokens_to_ids("<|mdm_mask|>")
)
print(bert.generate(prompt["input_ids"], strategy="block(size=4)", max_new_tokens=8)[0, -8:])
