"""Talk to a running server with OpenAI's own client: complete, stream, and meet errors.

wavefront serve                                                  # in another terminal
python examples/serve_client.py --url http://127.0.0.1:8000
"""

import argparse
import os
import sys

try:
    import openai
except ImportError:
    sys.exit("This example needs the client: pip install openai")

parser = argparse.ArgumentParser(description="Ask a running server a question.")
parser.add_argument("--url", default="http://127.0.0.1:8000", help="where the server listens")
url = parser.parse_args().url.rstrip("/")

# The client sends a request again by itself when the server is full (429) or restarting (503).
key = os.environ.get("WAVEFRONT_API_KEY", "none")
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
try:
    model = client.models.list().data[0].id
except openai.APIConnectionError:
    sys.exit(f"There is no server at {url}: start one with `wavefront serve`.")
except openai.AuthenticationError:
    sys.exit("The server wants its key: set WAVEFRONT_API_KEY.")

question = "Sam has 3 bags of 4 figs and eats 2. How many are left?"
ask = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 48}

# Everything that OpenAI's API has no name for goes into extra_body, under its name in Python.
ours = {"strategy": "wavefront(size=8, radius=2)", "eos": "defer"}
answer = client.chat.completions.create(**ask, extra_body=ours)
print(answer.choices[0].message.content)
print(f"{answer.usage.completion_tokens} tokens, ended by {answer.choices[0].finish_reason}")

# A stream carries what is settled from the left; it is never taken back.
try:
    for chunk in client.chat.completions.create(**ask, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
except openai.APIError as error:  # in the middle, when what decoded it was lost
    print(f"\nThe stream broke off: {error.message}")

# What the server does not support it refuses, and names the field.
try:
    client.chat.completions.create(**ask, logprobs=True)
except openai.BadRequestError as error:
    print(f"refused: {error.param}: {error.message}")
