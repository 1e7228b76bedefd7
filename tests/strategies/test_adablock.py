"""AdaBlock against a plain loop, commit for commit; by hand; and how a delimiter is named."""

from __future__ import annotations

import random

import pytest
import torch
from helpers import oracle
from helpers.scopes import Choose, by_quota, by_threshold
from strategies.test_against_oracle import KINDS, random_case, random_scores

import wavefront
from wavefront.core import spec
from wavefront.core.canvas import Canvas, blank, infill
from wavefront.core.errors import OptionError
from wavefront.core.state import Config, candidates, decide_and_write, start
from wavefront.core.strategy import Strategy
from wavefront.engine.options import ModelProperties, plan
from wavefront.strategies.adablock import Adablock
from wavefront.strategies.block import Block
from wavefront.strategies.selectors.dream import Dream
from wavefront.strategies.selectors.quota import Quota
from wavefront.strategies.selectors.threshold import Threshold
from wavefront.testing import laws, model_laws
from wavefront.testing.simulation import MASK, PAD, fill

TAU, TAU_D = 0.72, 0.45  # between the levels of the scores, so that no rounding decides
WORD, LINE, STOP = 7, 8, 9  # what a position may propose
Tokens = dict[int, int]


def adablock(case, scores, tokens, choose: Choose, *, size, ends, share, tau_d=TAU_D):
    """(candidates, commit) a step of one row, from the published description, in slots.

    `tokens(step)` gives the proposal at every position; `ends` are the delimiters.
    """
    n = len(case.masked)
    open_ = [True] * n
    block = range(0)  # none yet

    def begin(score: dict[int, float], said: Tokens) -> range:
        first = open_.index(True)
        best: tuple[float, int] | None = None  # the surest delimiter, the first among equals
        for slot in range(first, min(first + int(share * n), n)):
            place = case.masked[slot]
            if not open_[slot] or said[place] not in ends:
                continue
            p = min(max(score[place], 1e-6), 1.0)  # what the simulator makes of a score
            if p >= tau_d and (best is None or p > best[0]):  # never so for NaN
                best = (p, slot)
        return range(first, best[1] + 1 if best else min(first + size, n))

    for step in range(case.steps):
        masked = [case.masked[slot] for slot in range(n) if open_[slot]]
        score = scores(step, frozenset(masked))
        here = block
        if masked and not any(open_[slot] for slot in block):
            here = begin(score, tokens(step))
        scope = [case.masked[slot] for slot in here if open_[slot]]
        commit = choose(step, scope, masked, score) if masked else []
        for place in commit:
            open_[case.masked.index(place)] = False
        if commit:  # a step without a commit begins nothing
            block = here
        yield frozenset(scope), frozenset(commit)


def run(strategy: Strategy, canvas: Canvas, case: oracle.Case, scores, tokens):
    """Yield (candidates, commit) per step of the tensor strategy; other positions hold noise."""
    config = Config(strategy=strategy, fixed_budget=True)
    rows = start(canvas, config, [case.steps], seeds=[0])
    no = torch.zeros(1, dtype=torch.bool)
    for step in range(case.steps):
        masked = frozenset(rows.canvas.masked[0].nonzero()[:, 0].tolist())
        board = torch.full(canvas.tokens.shape, 0.5)
        for place, value in scores(step, masked).items():
            board[0, place] = value
        said = torch.zeros_like(canvas.tokens)
        for place, token in tokens(step).items():
            said[0, place] = token
        wanted = candidates(config, rows)
        rows = fill(rows, torch.where(wanted, board, 0.99))
        rows = rows._replace(proposal=torch.where(wanted, said, LINE))
        rows, _, decision = decide_and_write(config, rows, MASK, bad=no, void=no)
        assert not bool((decision.commit & ~wanted).any())  # what is written was read
        yield tuple(
            frozenset(part[0].nonzero()[:, 0].tolist())
            for part in (decision.candidates, decision.commit)
        )


def random_tokens(rng: random.Random, length: int):
    """Fresh proposals every step; sometimes delimiters abound, sometimes they are rare."""
    seed, rare = rng.randrange(1 << 30), rng.choice((0.1, 0.5))

    def at(step: int) -> Tokens:
        source = random.Random(seed * 1000 + step)
        return {
            place: source.choice((LINE, STOP)) if source.random() < rare else WORD
            for place in range(length)
        }

    return at


def draw_case(rng: random.Random):
    canvas, case = random_case(rng, rng.choice(KINDS))
    length = canvas.tokens.shape[1]
    scores, tokens = random_scores(rng, length), random_tokens(rng, length)
    if rng.random() < 0.5:
        return (canvas, case, scores, tokens), Quota(), by_quota(len(case.masked), case.steps)
    return (canvas, case, scores, tokens), Threshold(TAU), by_threshold(case.steps, TAU)


@pytest.mark.slow
def test_adablock_equals_the_oracle():
    rng = random.Random("adablock")
    ended = 0
    for _ in range(120):
        at, selector, choose = draw_case(rng)
        size, share = rng.randint(1, 9), rng.choice((0.0, 0.25, 0.5, 1.0))
        ends = rng.choice(((LINE,), (LINE, STOP)))
        ours = list(run(Adablock(size, ends, TAU_D, share, selector), *at))
        how = {"size": size, "ends": ends, "share": share}
        theirs = list(adablock(*at[1:], choose, **how))
        assert ours == theirs, (how, selector, at[1])
        ended += ours != list(run(Adablock(size, (), TAU_D, share, selector), *at))
    assert ended > 25  # delimiters did end blocks


def test_comparison_notices_every_wrong_rule():
    """A window, a size or a bound that is a little off is noticed."""
    rng = random.Random("teeth")
    noticed = {"share": 0, "size": 0, "tau_d": 0, "ends": 0}
    right = {"size": 3, "ends": (LINE,), "share": 0.5, "tau_d": TAU_D}
    wrong = {"size": 4, "ends": (STOP,), "share": 0.25, "tau_d": 0.55}
    for _ in range(60):
        at, selector, choose = draw_case(rng)
        ours = list(run(Adablock(3, (LINE,), TAU_D, 0.5, selector), *at))
        for name in noticed:
            how = right | {name: wrong[name]}
            noticed[name] += ours != list(adablock(*at[1:], choose, **how))
    assert min(noticed.values()) > 8, noticed


def test_without_delimiters_it_is_block():
    """Nothing to end at: fixed blocks, when the selector has no plan to share out over them."""
    rng = random.Random("block")
    for _ in range(25):
        at, _, _ = draw_case(rng)
        size = rng.randint(1, 9)
        blocks = list(run(Block(size, Threshold(TAU)), *at))
        for ends, tau_d, share in (((), 0.3, 1.0), ((99,), 0.3, 1.0), ((LINE, STOP), 0.3, 0.0)):
            assert list(run(Adablock(size, ends, tau_d, share, Threshold(TAU)), *at)) == blocks


def test_fixed_budget_is_kept():
    """Blocks of any length, and still k_t positions a step."""
    rng = random.Random("plan")
    for _ in range(40):
        at, _, _ = draw_case(rng)
        case = at[1]
        found = run(Adablock(2, (LINE,), TAU_D, 0.5, Quota()), *at)
        counts = [len(commit) for _, commit in found]
        assert counts == [oracle.even(len(case.masked), case.steps, t) for t in range(case.steps)]


# By hand. Eight slots after a prompt of one, so positions are slots plus one; a word a step.
BOARD = blank([[5]], 8, mask_id=MASK, pad_id=PAD)


def by_hand(strategy, rows, board=BOARD):
    """The scopes, in slots; a row of `rows` per step: "w5" is a word with p = 0.5, "n" a newline.

    What is said of a position that is decided does not matter.
    """
    slots = board.masked[0].nonzero()[:, 0].tolist()
    case = oracle.Case(frozenset(), tuple(slots), len(rows))
    values = [
        {p: float(f".{one[1]}5") for p, one in zip(slots, r.split(), strict=True)} for r in rows
    ]
    said = [
        {p: LINE if one[0] == "n" else WORD for p, one in zip(slots, r.split(), strict=True)}
        for r in rows
    ]
    found = run(
        strategy,
        board,
        case,
        lambda step, masked: {p: values[step][p] for p in masked},
        said.__getitem__,
    )
    return [tuple(sorted(slots.index(place) for place in scope)) for scope, _ in found]


def test_block_ends_at_the_most_probable_newline():
    rows = [
        # Window 0-3; of two newlines the one at 2 is surer: the block is 0-2. Slot 0 goes.
        "w9 n4 n6 w1 n9 w1 w1 w1",
        # The block stays, though slot 3 looks surer now. Slot 2, then slot 1.
        "w0 w3 w8 n9 w1 w1 w1 w1",
        "w0 w3 w0 n9 w1 w1 w1 w1",
        # The next block looks at 3-6: a newline at 6. All sure ones go at once: 3, 4, 6; then 5.
        "w0 w0 w0 w9 w9 w1 n9 n9",
        "w0 w0 w0 w0 w0 w1 w0 n9",
        # One slot is left.
        "w0 w0 w0 w0 w0 w0 w0 w1",
    ]
    assert by_hand(Adablock(4, (LINE,), 0.3, 0.5), rows) == [
        (0, 1, 2),
        (1, 2),
        (1,),
        (3, 4, 5, 6),
        (5,),
        (7,),
    ]


def test_improbable_or_distant_newline_does_not_end_the_block():
    rows = [
        "w9 n2 w1 w1 n9 w9 w9 w9",  # 0.25 at slot 1 is below tau_d; slot 4 is outside the window
        "w0 w9 w9 w1 n9 w9 w9 w9",  # so the block has three slots
        "w0 w0 w0 w9 n9 w9 w9 w9",  # slots 3-6 are searched: the newline at 4 ends the block
        "w0 w0 w0 w0 w0 w9 w9 w9",
    ]
    found = by_hand(Adablock(3, (LINE,), 0.3, 0.5), rows)
    assert found == [(0, 1, 2), (1, 2), (3, 4), (5, 6, 7)]


def test_first_of_equal_newlines_ends_the_block():
    assert by_hand(Adablock(4, (LINE,), 0.3, 0.5), ["w1 n5 n5 n4 w1 w1 w1 w1"])[0] == (0, 1)


def test_holes_count_by_slot():
    """Places 0 2 3 6 7 10 are to be filled: slots 0-5, whatever lies between them."""
    marks = [place in (0, 2, 3, 6, 7, 10) for place in range(12)]
    board = infill([[5] * 12], [marks], mask_id=MASK, pad_id=PAD)
    # Half of the slots are 0-2; the newline at slot 2 is taken, the one at slot 3 not seen.
    rows = ["w9 w9 n9 n9 w9 w9", "w0 w0 w0 n9 w9 w9", "w0 w0 w0 w0 w9 w9"]
    assert by_hand(Adablock(2, (LINE,), 0.3, 0.5), rows, board) == [(0, 1, 2), (3,), (4, 5)]


def test_step_without_commits_does_not_begin_a_block():
    """Dream's first counts can be zero; such a step is passed over, so it must leave no mark."""
    case = oracle.Case(frozenset((0,)), tuple(range(1, 9)), 20)
    words, lines = dict.fromkeys(range(1, 9), WORD), dict.fromkeys(range(1, 9), LINE)
    found = run(
        Adablock(4, (LINE,), 0.3, 0.5, Dream()),
        BOARD,
        case,
        lambda step, masked: dict.fromkeys(masked, 0.5),
        lambda step: words if step == 0 else lines,
    )
    scopes, commits = zip(*found, strict=True)
    assert commits[0] == frozenset()
    assert scopes[0] == {1, 2, 3, 4}
    assert scopes[1] == {1}


@pytest.mark.parametrize(
    "strategy",
    [Adablock(3, (7,), 0.3, 0.5), Adablock(2, (7,), 0.3, 1.0, Quota())],
    ids=repr,
)
def test_laws_where_delimiters_end_blocks(strategy):
    """The simulator proposes token 7 everywhere."""
    laws.reads_only_candidates(strategy)
    laws.commits_candidates_first(strategy)
    laws.rows_are_independent(strategy)
    laws.padding_changes_nothing(strategy)
    laws.keeps_the_state_shape(strategy)
    laws.runs_on_meta(strategy)


def test_scoring_only_candidates_is_enough_with_real_delimiters():
    every = tuple(range(0, 64, 2))  # half of the toy's tokens
    model_laws.scoring_candidates_is_enough(Adablock(3, every, 0.0, 0.5))


# How a delimiter is named.


@pytest.fixture(scope="module")
def lm() -> wavefront.LM:
    return wavefront.load("toy")


def test_delimiter_texts_become_token_ids(lm):
    def used(text):
        stream = lm.stream("Hi", strategy=text, max_new_tokens=8)
        return stream.decoding.plan.config.strategy

    newline, stop = lm.tokenizer.encode("\n."), lm.tokenizer.encode(".")
    assert used("adablock").delimiters == (newline[0],)
    assert used("adablock(delimiters=('\\n', '.'))").delimiters == (newline[0], *stop)
    assert used(f"adablock(delimiters=('.', 5, {stop[0]}))").delimiters == (*stop, 5)
    assert used("adablock(delimiters=())").delimiters == ()
    hole = lm.stream_infill("a <mask:4> b", strategy="adablock")
    assert hole.decoding.plan.config.strategy.delimiters == (newline[0],)


def test_delimiter_text_must_be_one_token(lm):
    with pytest.raises(OptionError, match="'ab' is 2 tokens for this model"):
        lm.generate("Hi", strategy="adablock(delimiters=('ab',))", max_new_tokens=4)


def test_delimiter_text_without_tokenizer_is_refused(lm):
    with pytest.raises(OptionError, match="no tokenizer; give token ids"):
        wavefront.generate_ids(lm.model, [[5, 6]], strategy="adablock", max_new_tokens=4)
    made = wavefront.generate_ids(
        lm.model, [[5, 6]], strategy="adablock(delimiters=(198,))", max_new_tokens=4
    )
    assert len(made.tokens[0]) == 4


def test_resolved_options_can_be_resolved_again():
    """A result file names ids, which need no tokenizer."""
    here = ModelProperties(
        mask_id=9, stop_ids=(2,), family="llada", vocab_size=10, id_of=lambda text: 4
    )
    made = plan({"strategy": "adablock"}, here)
    assert made.config.strategy == Adablock(delimiters=(4,))
    assert plan(made.options(), here._replace(id_of=None)) == made


def test_published_defaults_and_refused_options():
    assert Adablock() == Adablock(16, ("\n",), 0.3, 0.25, Threshold(0.9))
    assert spec.resolve(repr(Adablock()), "strategies") == Adablock()
    for text, sentence in (
        ("adablock(size=0)", "size must be between 1 and 1048576"),
        ("adablock(tau_d=1.5)", "tau_d must be between 0 and 1"),
        ("adablock(share=-1)", "share must be between 0 and 1"),
        ("adablock(delimiters=198)", "must be a tuple of token ids or texts"),
        ("adablock(delimiters='.')", "must be a tuple of token ids or texts"),
        ("adablock(delimiters=(1.5,))", "delimiters must be a whole number"),
    ):
        with pytest.raises(OptionError, match=sentence):
            spec.resolve(text, "strategies")
