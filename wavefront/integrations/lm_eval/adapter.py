"""The model that lm-eval runs under the name `wavefront`.

Generation takes all decoding options; log-likelihoods come from `likelihood`. Every finished item
goes to lm-eval's response cache at once. That cache identifies an item only by its prompt, so every
combination of weights, strategy and options gets its own table in the cache.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

from wavefront.core.bounds import MAX_POSITIONS, check_option
from wavefront.core.errors import (
    MissingExtraError,
    OptionError,
    WavefrontWarning,
    check_int,
    did_you_mean,
    install_command,
)
from wavefront.engine.layout import room_after, room_before
from wavefront.engine.options import Options, Plan, plan, resolve_builtin_specs
from wavefront.engine.session import begin, model_properties
from wavefront.evaluation import fingerprint
from wavefront.integrations.lm_eval import arguments, likelihood
from wavefront.integrations.lm_eval.prompts import RequestEncoder, cut
from wavefront.lm import Stream, load

if find_spec("lm_eval") is None:
    raise MissingExtraError(f"lm-eval is not installed: {install_command('lm-eval')}.")

from lm_eval.api.model import LM as Base
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

DEFAULT_LENGTH = 256  # new tokens if neither model_args nor the task sets them; lm-eval's default
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
NOT_BUILT_IN = (
    "The task sets {option}={spec}, but a task can name only built-in ones: name your own {option} "
    "in --model_args."
)
SAMPLED = ("temperature", "top_p", "top_k")
Found = TypeVar("Found")


class DecodeRequest(NamedTuple):
    """A request that is ready to be decoded."""

    number: int
    args: tuple[Any, ...]  # the key in lm-eval's cache
    ids: list[int]
    options: dict[str, Any]
    stops: list[str]

    @property
    def group(self) -> str:
        """The batching key: requests with equal keys can share a batch."""
        return repr(sorted(self.options.items()))


class WavefrontLM(Base):
    """A wavefront model for lm-eval. It takes the arguments of `--model_args`."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments = arguments.parse_arguments(given)
        self.lm = load(self.arguments.path, **self.arguments.load_options)
        self.model = self.lm.model
        self.likelihood = self.arguments.likelihood_settings(self.model.family)
        self.plan = self._own_plan()
        self.prompts = RequestEncoder(self.lm, bos=self.arguments.bos)
        self._device = self.model.device

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> WavefrontLM:
        """Create a model from `name=value,…`; lm-eval's parser would split specs at commas."""
        return cls(**arguments.merge_flags(arguments.parse(arg_string), additional_config))

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> WavefrontLM:
        return cls(**arguments.merge_flags(arg_dict, additional_config))

    @property
    def batch_size(self) -> int:
        return self.arguments.batch_size

    @property
    def max_length(self) -> int:
        return self.model.max_length

    def _own_plan(self) -> Plan:
        """Resolve model_args now, so that errors appear before the first request."""
        options = dict(self.arguments.options)
        if arguments.length_of(options) is None:  # the tasks set the length, and steps depend on it
            check_option("steps", options.pop("steps", 1))
        return self._plan(options)

    def _plan(self, options: Mapping[str, Any]) -> Plan:
        return plan(options, model_properties(self.model, self.lm.stop_ids, self.lm._id_of))

    # The cache.

    def fingerprint(self) -> str:
        """Return a fingerprint of everything except the request that determines an answer."""
        own = arguments.length_of(self.arguments.options) is not None
        parts = {
            "code": fingerprint.of_code(),
            "weights": fingerprint.of_weights(self.lm),
            "tokenizer": fingerprint.of_tokenizer(self.lm),
            "dtype": str(self.model.dtype),
            "device": self.model.device.type,
            "options": self.plan.options(),
            "strategy": fingerprint.of_strategy(self.plan.config.strategy),
            "likelihood": list(self.likelihood),
            "check_greedy": self.arguments.check_greedy,
            "opening": self.prompts.opening,
            "length": "own" if own else "of the request",
            "steps": self.arguments.options.get("steps"),
        }
        return fingerprint.of_value(parts)

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Use a table of the cache that only a model with the same fingerprint reads."""
        store = cache_hook.dbdict
        if store is not None:
            table = f"wavefront {self.fingerprint()}"
            try:
                type(store)(store.filename, tablename=table).close()  # creates the table
                store.tablename = table
            except (AttributeError, TypeError) as error:
                raise OptionError(
                    "This version of lm-eval has an unknown cache format, which would mix the "
                    "answers of different settings: leave out --use_cache."
                ) from error
        super().set_cache_hook(cache_hook)

    # Chat templates.

    @property
    def tokenizer_name(self) -> str:
        return f"{self.lm.name.replace('/', '__')}__{fingerprint.of_tokenizer(self.lm)[:12]}"

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """Return the chat template; lm-eval calls this if it renders conversations."""
        if chat_template is False or chat_template is None:
            return None
        self.prompts.templated = True
        return self.prompts.template()

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Render a conversation as text that ends with an open turn of the assistant."""
        return self.prompts.render(chat_history)

    # Requests.

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Return the answers, each cut at its first stop string."""
        seen: Counter[str] = Counter()
        jobs: list[DecodeRequest] = []
        for number, request in enumerate(requests):
            jobs.append(self._job(number, request.args, seen))
        for options in {job.group: job.options for job in jobs}.values():
            self._plan(options)  # fail before the first item if a task's options are invalid
        found = [""] * len(jobs)
        with self._bar("generate_until", len(jobs), disable_tqdm) as bar:
            for batch in _batches(jobs, self.batch_size):
                for job, text in zip(batch, self._decode(batch), strict=True):
                    found[job.number] = cut(text, job.stops)
                    self.cache_hook.add_partial("generate_until", job.args, found[job.number])
                    bar.update()
        return found

    def _job(self, number: int, args: tuple[Any, ...], seen: Counter[str]) -> DecodeRequest:
        context, wanted = args[0], args[1]
        options, stops = self._options(wanted)
        key = repr((context, wanted))
        if seen[key]:  # several samples of one prompt: each has its own seed
            options["seed"] = options.get("seed", 0) + seen[key]
        seen[key] += 1
        ids, length = self.prompts.encode(context), options["max_new_tokens"]
        if not ids:
            raise OptionError(f"Request {number + 1} is empty: a prompt needs at least one token.")
        room = room_before(self.model, length)
        if room < 1:
            raise OptionError(
                f"{length} new tokens leave no room for a prompt in the model's "
                f"{self.max_length} positions: give max_new_tokens in model_args."
            )
        if len(ids) > room:
            _warn_cut(len(ids), room)
        return DecodeRequest(number, args, ids[-room:], options, stops)

    def _options(self, wanted: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Return the options and stop strings of a request; model_args override the task."""
        task, own = dict(wanted), self.arguments.options
        until = task.pop("until", None) or []
        lengths = [task.pop(name) for name in LENGTHS if name in task]
        sampled = task.pop("do_sample", False)
        if task.get("num_beams") == 1:  # means: no beam search
            del task["num_beams"]
        for name in SAMPLED:
            value = task.pop(name, None)
            if sampled and value is not None:
                task[name] = value
        for name in task:
            if name not in Options.__annotations__:
                raise OptionError(
                    f"The task sets {name}={task[name]!r}, which wavefront does not support"
                    f"{did_you_mean(name, Options.__annotations__)}: override it with --gen_kwargs."
                )
        length = arguments.length_of(own)
        length = next((n for n in [length, *lengths] if n is not None), DEFAULT_LENGTH)
        check_int("max_gen_toks", length, 1, high=MAX_POSITIONS)
        kept = {n: v for n, v in own.items() if arguments.length_of({n: v}) is None}
        stops = [until] if isinstance(until, str) else [str(stop) for stop in until]
        task = {name: value for name, value in task.items() if name not in kept}
        # A task is a file, and a file must not import code.
        task = resolve_builtin_specs(task, where=NOT_BUILT_IN)
        return task | kept | {"max_new_tokens": length}, stops

    def _decode(self, batch: Sequence[DecodeRequest]) -> list[str]:
        lm = self.lm
        decoding = begin(
            self.model,
            [job.ids for job in batch],
            batch[0].options,
            stop_ids=lm.stop_ids,
            id_of=lm._id_of,
            captured=lm.captured,
        )
        return [completion.text for completion in Stream(lm, decoding.drain()).completions]

    def loglikelihood(
        self, requests: list[Any], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation in nats, and whether it is greedy."""
        found: list[tuple[float, bool]] = []
        with self._bar("loglikelihood", len(requests), disable_tqdm) as bar:
            for request in requests:
                prompt, answer = self.prompts.pair(*request.args[:2])
                if len(answer) > room_after(self.model, len(prompt), self.max_length):
                    _warn_cut(len(prompt) + len(answer), self.max_length)
                value = likelihood.log_likelihood(
                    self.model, prompt, answer, settings=self.likelihood
                )
                greedy = self.arguments.check_greedy and likelihood.is_greedy(
                    self.model, prompt, answer, cfg_scale=self.likelihood.cfg_scale
                )
                found.append((value, greedy))
                self.cache_hook.add_partial("loglikelihood", request.args, found[-1])
                bar.update()
        return found

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of whole texts, in windows of the model's length.

        Each token counts once. The first window follows the begin-of-sequence token (or the end
        token if there is none). Every other window follows as much earlier text as fits.
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
        room = room_after(self.model, 1, self.max_length)  # after the token before
        windows = get_rolling_token_windows(
            tokenizer.encode(text),
            prefix_token=first,
            max_seq_len=room - (self.likelihood.rule != "llada"),  # without Dream's end token
            context_len=1,
        )
        for before, scored in map(make_disjoint_window, windows):
            yield likelihood.log_likelihood(self.model, before, scored, settings=self.likelihood)

    def _bar(self, name: str, total: int, hidden: bool) -> Any:
        return tqdm(total=total, desc=f"wavefront {name}", disable=hidden or self.rank != 0)


def _batches(jobs: Sequence[DecodeRequest], size: int) -> Iterator[list[DecodeRequest]]:
    """Yield batches with equal options, the longest prompts first, so that failures come early."""
    ordered = sorted(jobs, key=lambda job: (job.group, -len(job.ids)))
    for _, same in groupby(ordered, key=lambda job: job.group):
        group = list(same)
        for start in range(0, len(group), size):
            yield group[start : start + size]


def _warn_cut(had: int, kept: int) -> None:
    warnings.warn(
        f"A prompt of {had} tokens is cut on the left to the model's limit of {kept}.",
        WavefrontWarning,
        stacklevel=3,
    )
