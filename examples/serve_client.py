"""Use a running server with OpenAI's client: complete, stream, and handle errors.

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

# The client repeats a request when the server is full (429) or restarting (503).
key = os.environ.get("WAVEFRONT_API_KEY", "none")
client = openai.OpenAI(base_url=f"{url}/v1", api_key=key)
try:
    model = client.models.list().data[0].id
except openai.APIConnectionError:
    sys.exit(f"There is no server at {url}: start one with `wavefront serve`.")
except openai.AuthenticationError:
    sys.exit("The server requires a key: set WAVEFRONT_API_KEY.")

question = "Sam has 3 bags of 4 figs and eats 2. How many are left?"
ask = {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": 48}

# Options that OpenAI's API does not have go into extra_body, under their Python names.
ours = {"strategy": "wavefront(size=8, radius=2)", "eos": "defer"}
answer = client.chat.completions.create(**ask, extra_body=ours)
print(answer.choices[0].message.content)
print(f"{answer.usage.completion_tokens} tokens, ended by {answer.choices[0].finish_reason}")

# A stream sends final text from the left. It never takes text back.
try:
    for chunk in client.chat.completions.create(**ask, stream=True):
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()
except openai.APIError as error:  # in the middle of a stream, if the decoder was lost
    print(f"\nThe stream broke off: {error.message}")

# The server rejects unsupported fields and names them.
try:
    client.chat.completions.create(**ask, presence_penalty=0.5)
except openai.BadRequestError as error:
    print(f"refused: {error.param}: {error.message}")
