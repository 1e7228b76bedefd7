"""The model that lm-eval runs under the name `wavefront`.

Generation is ours with all its options; log-likelihoods are those of `harness.likelihood`. Every
finished item goes to lm-eval's response cache at once. That cache knows an item by its prompt
alone, so ours lies in a table of its own for every set of weights, strategy and options.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from wavefront.core.errors import (
    MissingExtraError,
    OptionError,
    WavefrontWarning,
    check_int,
    did_you_mean,
)
from wavefront.engine.options import Options, Plan, plan
from wavefront.engine.session import begin, source
from wavefront.integrations.lm_eval import arguments, likelihood
from wavefront.integrations.lm_eval.fingerprint import fingerprint, of_tokenizer
from wavefront.integrations.lm_eval.prompts import Prompts, cut
from wavefront.lm import Stream, load

if find_spec("lm_eval") is None:
    raise MissingExtraError("This needs lm-eval: pip install 'wavefront[lm-eval]'.")

from lm_eval.api.model import LM as Base
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

DEFAULT_LENGTH = 256  # places when neither model_args nor the task says, as lm-eval's own models
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
SAMPLED = ("temperature", "top_p", "top_k")
Found = TypeVar("Found")


class Job(NamedTuple):
    """One request, ready to be decoded."""

    number: int
    args: tuple[Any, ...]  # as lm-eval's cache knows it
    ids: list[int]
    options: dict[str, Any]
    stops: list[str]

    @property
    def group(self) -> str:
        """Requests with equal ones can share a batch."""
        return repr(sorted(self.options.items()))


class Wavefront(Base):
    """A wavefront model for lm-eval; its arguments are those of `--model_args`."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments = arguments.read(given)
        self.lm = load(self.arguments.path, **self.arguments.place)
        self.model = self.lm.model
        self.setting = self.arguments.setting(self.model.family)
        self.plan = self._own_plan()
        self.prompts = Prompts(self.lm, bos=self.arguments.bos)
        self._device = self.model.device

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> Wavefront:
        """From `name=value,…`; lm-eval's own reading would break a spec at its commas."""
        return cls(**arguments.merged(arguments.parse(arg_string), additional_config))

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> Wavefront:
        return cls(**arguments.merged(arg_dict, additional_config))

    @property
    def batch_size(self) -> int:
        return self.arguments.batch_size

    @property
    def max_length(self) -> int:
        return self.model.max_length

    def _own_plan(self) -> Plan:
        """What model_args come to; whatever is wrong with them is said before any request."""
        options = dict(self.arguments.options)
        if arguments.length_of(options) is None:  # the tasks will say, and steps go with that
            check_int("steps", options.pop("steps", 1), 1)
        return self._plan(options)

    def _plan(self, options: Mapping[str, Any]) -> Plan:
        return plan(options, source(self.model, self.lm.stop_ids, self.lm._id_of))

    # The cache.

    def fingerprint(self) -> str:
        """What decides an answer beside the request, as one name."""
        own = arguments.length_of(self.arguments.options) is not None
        more = {
            "likelihood": list(self.setting),
            "check_greedy": self.arguments.check_greedy,
            "opening": self.prompts.opening,
            "length": "own" if own else "of the request",
            "steps": self.arguments.options.get("steps"),
        }
        return fingerprint(self.lm, self.plan, more)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Take the cache, but a table of it that only an equal model reads."""
        store = cache_hook.dbdict
        if store is not None:
            table = f"wavefront {self.fingerprint()}"
            try:
                type(store)(store.filename, tablename=table).close()  # makes the table
                store.tablename = table
            except (AttributeError, TypeError) as error:
                raise OptionError(
                    "This version of lm-eval keeps its cache in a way we do not know, and there "
                    "it would mix the answers of different settings: leave out --use_cache."
                ) from error
        super().set_cache_hook(cache_hook)

    # Chat templates.

    @property
    def tokenizer_name(self) -> str:
        return f"{self.lm.name.replace('/', '__')}__{of_tokenizer(self.lm)[:12]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The template's source; lm-eval asks for it when conversations are to be rendered."""
        if chat_template is False or chat_template is None:
            return None
        self.prompts.templated = True
        return self.prompts.template()

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as text, ending with an open turn of the assistant."""
        return self.prompts.render(chat_history)

    # Requests.

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The answers, each cut at its first stop string."""
        seen: Counter[str] = Counter()
        jobs: list[Job] = []
        for number, request in enumerate(requests):
            jobs.append(self._job(number, request.args, seen))
        for options in {job.group: job.options for job in jobs}.values():
            self._plan(options)  # a task's wish that cannot be met is said before an hour's work
        found = [""] * len(jobs)
        with self._bar("generate_until", len(jobs), disable_tqdm) as bar:
            for batch in _batches(jobs, self.batch_size):
                for job, text in zip(batch, self._decode(batch), strict=True):
                    found[job.number] = cut(text, job.stops)
                    self.cache_hook.add_partial("generate_until", job.args, found[job.number])
                    bar.update()
        return found

    def _job(self, number: int, args: tuple[Any, ...], seen: Counter[str]) -> Job:
        context, wanted = args[0], args[1]
        options, stops = self._options(wanted)
        key = repr((context, wanted))
        if seen[key]:  # asked for several samples of one prompt: each has a seed of its own
            options["seed"] = options.get("seed", 0) + seen[key]
        seen[key] += 1
        ids, length = self.prompts.encode(context), options["max_new_tokens"]
        if not ids:
            raise OptionError(f"Request {number + 1} is empty: a prompt needs at least one token.")
        room = self.max_length - length
        if room < 1:
            raise OptionError(
                f"{length} places leave no room for a prompt in the model's {self.max_length}: "
                "give max_new_tokens in model_args."
            )
        if len(ids) > room:
            _warn_cut(len(ids), room)
        return Job(number, args, ids[-room:], options, stops)

    def _options(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Options and stop strings of a request; model_args win over what a task asks for."""
        task, own = dict(wanted), self.arguments.options
        until = task.pop("until", None) or []
        lengths = [task.pop(name) for name in LENGTHS if name in task]
        sampled = task.pop("do_sample", False)
        if task.get("num_beams") == 1:  # the usual way to say: nothing of the kind
            del task["num_beams"]
        for name in SAMPLED:
            value = task.pop(name, None)
            if sampled and value is not None:
                task[name] = value
        for name in task:
            if name not in Options.__annotations__:
                raise OptionError(
                    f"The task asks for {name}={task[name]!r}, which decoding here does not have"
                    f"{did_you_mean(name, Options.__annotations__)}: override it with --gen_kwargs."
                )
        length = arguments.length_of(own)
        length = next((n for n in [length, *lengths] if n is not None), DEFAULT_LENGTH)
        check_int("max_gen_toks", length, 1)
        kept = {n: v for n, v in own.items() if arguments.length_of({n: v}) is None}
        stops = [until] if isinstance(until, str) else [str(stop) for stop in until]
        return task | kept | {"max_new_tokens": length}, stops

    def _decode(self, batch: Sequence[Job]) -> list[str]:
        lm = self.lm
        decoding = begin(
            self.model,
            [job.ids for job in batch],
            batch[0].options,
            stop_ids=lm.stop_ids,
            id_of=lm._id_of,
        )
        return [one.text for one in Stream(lm, decoding.drain()).completions]

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """(log-likelihood in nats, is it what decoding would write?) of each continuation."""
        found: list[tuple[float, bool]] = []
        with self._bar("loglikelihood", len(requests), disable_tqdm) as bar:
            for request in requests:
                prompt, answer = self.prompts.pair(*request.args[:2])
                if len(prompt) + len(answer) > self.max_length:
                    _warn_cut(len(prompt) + len(answer), self.max_length)
                value = likelihood.log_likelihood(self.model, prompt, answer, self.setting)
                greedy = self.arguments.check_greedy and likelihood.is_greedy(
                    self.model, prompt, answer, cfg_scale=self.setting.cfg_scale
                )
                found.append((value, greedy))
                self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
                bar.update()
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, in windows as long as the model; each token counts once.

        The first window follows the begin of sequence (or the end token, where there is none),
        every other one as much of the text before it as there is room for.
        """
        found: list[float] = []
        with self._bar("loglikelihood_rolling", len(requests), disable_tqdm) as bar:
            for request in requests:
                found.append(sum(self._windows(request.args[0])))
                self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
                bar.update()
        return found

    def _windows(self, text: str) -> Iterator[float]:
        tokenizer = self.lm.tokenizer
        first = tokenizer.bos_id if tokenizer.bos_id is not None else self.lm.stop_ids[0]
        added = 1 + (self.setting.rule != "llada")  # the token before, and Dream's end
        windows = get_rolling_token_windows(
            tokenizer.encode(text),
            prefix_token=first,
            max_seq_len=self.max_length - added,
            context_len=1,
        )
        for before, scored in map(make_disjoint_window, windows):
            yield likelihood.log_likelihood(self.model, before, scored, self.setting)

    def _bar(self, name: str, total: int, hidden: bool) -> Any:
        return tqdm(total=total, desc=f"wavefront {name}", disable=hidden or self.rank != 0)


def _batches(jobs: Sequence[Job], size: int) -> Iterator[list[Job]]:
    """Batches of equal options, the longest prompts first: what does not fit fails at once."""
    ordered = sorted(jobs, key=lambda job: (job.group, -len(job.ids)))
    for _, same in groupby(ordered, key=lambda job: job.group):
        group = list(same)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _warn_cut(had: int, kept: int) -> None:
    warnings.warn(
        f"A prompt of {had} tokens is cut on its left to {kept}, what the model has room for.",
        WavefrontWarning,
        stacklevel=3,
    )
