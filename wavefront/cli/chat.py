"""`wavefront chat`: a conversation on standard input, a line a turn."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.decode import prepare, record, run
from wavefront.cli.option_groups import given
from wavefront.cli.options import DecodingOptions, LengthOptions, ModelOptions, OutputOptions
from wavefront.cli.output import complain, say, say_json, stderr
from wavefront.core.errors import OptionError, PromptError, WavefrontError, did_you_mean

if TYPE_CHECKING:
    from wavefront.lm import LM

EXAMPLES = """\
In the conversation
/strategy SPEC   decode with another strategy from now on
/reset           forget what was said
/help            show these commands
/quit            leave, as the end of input does
//...            a message that begins with a slash
"""
HELP = EXAMPLES.partition("\n")[2].rstrip()
COMMANDS = ("/strategy", "/reset", "/help", "/quit")


def chat(
    *,
    system: Annotated[
        str | None, typer.Option("--system", help="A system message, before all others.")
    ] = None,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Talk to a model that has a chat template.

    Every turn decodes a new canvas behind the whole conversation. In a terminal you see it being
    filled; lines from a pipe are answered one by one.
    """
    lm, options = prepare(model, decoding, output, length=given(length))
    if lm.tokenizer.template is None:
        raise PromptError(
            f"The model {lm.name!r} has no chat template, so it cannot hold a conversation: "
            "use `wavefront generate --raw`, or another model."
        )
    interactive = sys.stdin.isatty()
    talk = Conversation(lm, options, model, output, system=system, interactive=interactive)
    if interactive and not output.quiet:
        stderr().print(f"{lm.name}: /help for the commands, /quit to leave.", style="dim")
    for line in _lines(interactive):
        try:
            if not talk.hear(line):
                return
        except WavefrontError as error:
            if not interactive:
                raise
            complain("error", str(error))
        except KeyboardInterrupt:
            if not interactive:
                raise
            stderr().print("Interrupted; what you said last is forgotten.", style="dim")


class Conversation:
    """What was said so far, and how to go on."""

    def __init__(
        self,
        lm: LM,
        options: dict[str, Any],
        model: ModelOptions,
        output: OutputOptions,
        *,
        system: str | None,
        interactive: bool,
    ) -> None:
        self._lm, self._options, self._model, self._output = lm, options, model, output
        self._interactive = interactive
        self._opening = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._opening)

    def hear(self, line: str) -> bool:
        """Take one line; False when it ends the conversation."""
        if line.startswith("/") and not line.startswith("//"):
            return self._obey(line)
        if line.strip():
            self._answer(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _answer(self, said: str) -> None:
        messages = [*self._messages, {"role": "user", "content": said}]
        stream = self._lm.stream(messages, **self._options)
        watching = self._output.watch
        if watching is None:
            watching = self._interactive and stderr().is_terminal and not self._output.quiet
        seconds = run(stream, self._output, watching=watching)
        answer = stream.completions[0]
        if self._output.json:
            facts = {"seconds": seconds, "model": self._model, "messages": messages}
            say_json(record(self._lm, stream, answer, **facts))
        else:
            say(answer.text)
        # Only what was answered is remembered: an error or an interruption leaves no trace.
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]

    def _obey(self, line: str) -> bool:
        command, _, rest = line.partition(" ")
        note = ""
        if command == "/strategy":
            note = self._change(rest.strip())
        elif command == "/reset":
            self._messages = list(self._opening)
            note = "Everything said is forgotten."
        elif command == "/help":
            note = HELP
        elif command != "/quit":
            raise OptionError(
                f"There is no command {command!r}{did_you_mean(command, COMMANDS)}; "
                f"there are: {', '.join(COMMANDS)}."
            )
        if note and not self._output.quiet:
            stderr().print(note, style="dim", soft_wrap=True)
        return command != "/quit"

    def _change(self, text: str) -> str:
        from wavefront.core import spec

        if text:
            made = spec.resolve(text, "strategies")
            # They name a strategy of their own, and the two would contradict each other.
            for name in ("alg", "eps", "alg_temp", "block_length"):
                self._options.pop(name, None)
            self._options["strategy"] = repr(made)
        return f"The strategy is {self._options.get('strategy', 'the default')}."


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        for line in sys.stdin:
            yield line.rstrip("\r\n")
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives `input` its line editing)

    # Where the answers go elsewhere, the prompt must not go with them.
    prompt = "> " if sys.stdout.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return
