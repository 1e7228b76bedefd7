"""`wavefront chat`: a conversation on standard input, one line per message."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wavefront.cli.command import Command
from wavefront.cli.decode import prepare, record, run
from wavefront.cli.option_names import with_option_names
from wavefront.cli.options import (
    DecodingOptions,
    LengthOptions,
    ModelOptions,
    OutputOptions,
    flatten_options,
    options_set,
)
from wavefront.cli.output import complain, say, say_json, stderr
from wavefront.core.errors import OptionError, PromptError, WavefrontError, did_you_mean

if TYPE_CHECKING:
    from wavefront.lm import LM

EXAMPLES = """\
Commands in the conversation
/strategy SPEC   use a different strategy from now on
/reset           start the conversation again
/help            show these commands
/quit or /exit   leave; so does the end of the input (Ctrl-D)
//...            send a message that begins with a slash
"""
HELP = EXAMPLES.partition("\n")[2].rstrip()
COMMANDS = ("/strategy", "/reset", "/help", "/quit")
LEAVE = ("/quit", "/exit")
app = typer.Typer(add_completion=False)


@app.command(cls=Command, epilog=EXAMPLES)
@flatten_options
def chat(
    context: typer.Context,
    *,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", metavar="TEXT", help="System message at the start. Default: none."
        ),
    ] = None,
    length: LengthOptions,
    decoding: DecodingOptions,
    model: ModelOptions,
    output: OutputOptions,
) -> None:
    """Chat with a model that has a chat template.

    The model sees the whole conversation for every answer. On a terminal you see each step. Lines
    from a pipe are answered one by one.
    """
    lm, options = prepare(model, decoding, output, length=options_set(length))
    if lm.tokenizer.template is None:
        from wavefront.models import builtin

        summary = builtin.SUMMARIES.get(lm.name)
        about = f" ({summary})" if summary else ""
        name = shlex.quote(model.model or lm.name)
        raise PromptError(
            f"The model {lm.name!r}{about} has no chat template, so it cannot chat: let it "
            f'continue a text with `wavefront generate -m {name} "Once upon a time"`, or use '
            "another model."
        )
    interactive = sys.stdin.isatty()
    messages = [] if system is None else [{"role": "system", "content": system}]
    talk = Conversation(lm, options, messages, model=model, output=output)
    if interactive and not output.quiet:
        stderr().print("Type /help for the commands, /quit to leave.", style="dim")
    for line in _lines(interactive):
        try:
            if not talk.handle(line):
                return
        except WavefrontError as error:
            if not interactive:
                raise
            complain("error", with_option_names(str(error), context))
        except KeyboardInterrupt:
            if not interactive:
                raise
            stderr().print("Interrupted; your last message is discarded.", style="dim")


class Conversation:
    """The messages so far, and the options of the next decode."""

    def __init__(
        self,
        lm: LM,
        options: dict[str, Any],
        opening: list[dict[str, str]],
        *,
        model: ModelOptions,
        output: OutputOptions,
    ) -> None:
        self._lm, self._options, self._model, self._output = lm, options, model, output
        self._opening = opening
        self._messages = list(opening)

    def handle(self, line: str) -> bool:
        """Answer a line or run its command. Return False if it ends the conversation."""
        if line.startswith("/") and not line.startswith("//"):
            return self._run_command(line)
        if line.strip():
            self._answer(line.removeprefix("/") if line.startswith("//") else line)
        return True

    def _answer(self, message: str) -> None:
        messages = [*self._messages, {"role": "user", "content": message}]
        stream = self._lm.stream(messages, **self._options)
        watching = self._output.watch
        if watching is None:
            watching = sys.stdin.isatty() and stderr().is_terminal and not self._output.quiet
        # The answer follows on the same terminal, so the last picture would repeat it.
        transient = sys.stdout.isatty()
        seconds = run(stream, self._output, watching=watching, transient=transient)
        answer = stream.completions[0]
        if self._output.json:
            facts = {"seconds": seconds, "model": self._model, "messages": messages}
            say_json(record(self._lm, stream, answer, **facts))
        else:
            say(answer.text)
        # A message is kept once it is answered, so an error or an interruption discards it.
        self._messages = [*messages, {"role": "assistant", "content": answer.text}]

    def _run_command(self, line: str) -> bool:
        command, _, rest = line.partition(" ")
        note = ""
        if command == "/strategy":
            note = self._set_strategy(rest.strip())
        elif command == "/reset":
            self._messages = list(self._opening)
            note = "The conversation starts again."
        elif command == "/help":
            note = HELP
        elif command not in LEAVE:
            raise OptionError(
                f"There is no command {command!r}{did_you_mean(command, COMMANDS)}; "
                f"there are: {', '.join(COMMANDS)}."
            )
        if note and not self._output.quiet:
            stderr().print(note, style="dim", soft_wrap=True)
        return command not in LEAVE

    def _set_strategy(self, text: str) -> str:
        from wavefront.core import spec

        if text:
            strategy = spec.resolve(text, "strategies")
            # These options name a strategy too, and would contradict this one.
            for name in ("alg", "eps", "alg_temp", "block_length"):
                self._options.pop(name, None)
            self._options["strategy"] = repr(strategy)
        return f"The strategy is {self._options.get('strategy', 'the default')}."


def _lines(interactive: bool) -> Iterator[str]:
    if not interactive:
        for number, line in enumerate(sys.stdin):
            # Some programs write a byte order mark first.
            yield (line if number else line.removeprefix("\ufeff")).rstrip("\r\n")
        return
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (gives `input` its line editing)

    # If standard output is not the terminal, do not write the prompt to it.
    prompt = "> " if sys.stdout.isatty() else ""
    while True:
        try:
            yield input(prompt)
        except EOFError:
            print(file=sys.stderr)
            return
