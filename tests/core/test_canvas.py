from __future__ import annotations

import torch

from wavefront.core.canvas import Canvas, blank, infill, is_complete

MASK, PAD = 9, 0


def test_blank_aligns_the_answers():
    canvas = blank([[5, 6, 7], [8]], 4, mask_id=MASK, pad_id=PAD)
    assert canvas.tokens.tolist() == [[5, 6, 7, 9, 9, 9, 9], [0, 0, 8, 9, 9, 9, 9]]
    assert canvas.known.tolist() == [[True] * 3 + [False] * 4, [False, False, True] + [False] * 4]
    assert canvas.slot.tolist() == [[-1, -1, -1, 0, 1, 2, 3]] * 2
    assert canvas.real[1].tolist() == [False, False] + [True] * 5


def test_rows_may_have_answers_of_different_lengths():
    canvas = blank([[5, 6], [8]], [1, 3], mask_id=MASK, pad_id=PAD)
    assert canvas.tokens.tolist() == [[5, 6, 9, 0, 0], [0, 8, 9, 9, 9]]
    assert canvas.real.tolist() == [[True] * 3 + [False] * 2, [False] + [True] * 4]


def test_mask_id_in_the_prompt_is_known():
    canvas = blank([[MASK, 5]], 2, mask_id=MASK, pad_id=PAD)
    assert canvas.known.tolist() == [[True, True, False, False]]
    assert canvas.masked.tolist() == [[False, False, True, True]]


def test_infill_counts_slots_over_the_holes():
    canvas = infill([[1, 2, 3, 4]], [[False, True, False, True]], mask_id=MASK, pad_id=PAD)
    assert canvas.tokens.tolist() == [[1, 9, 3, 9]]
    assert canvas.slot.tolist() == [[-1, 0, -1, 1]]


def test_commit_writes_tokens_and_take_back_masks_them_again():
    canvas = blank([[5]], 2, mask_id=MASK, pad_id=PAD)
    where = torch.tensor([[False, True, False]])
    after = canvas.commit(where, torch.full_like(canvas.tokens, 7))
    assert after.tokens.tolist() == [[5, 7, 9]]
    assert after.masked.tolist() == [[False, False, True]]
    back = after.take_back(where, MASK)
    assert all(torch.equal(a, b) for a, b in zip(back, canvas, strict=True))


def ended(tokens, masked, holes=None) -> bool:
    """Return whether the row is complete, with 2 and 3 as stop tokens."""
    holes = holes or [True] * len(tokens)
    board = infill([tokens], [holes], mask_id=MASK, pad_id=PAD)
    masked = torch.tensor([masked])
    canvas = Canvas(torch.tensor([tokens]), masked, ~masked, board.slot)
    return bool(is_complete(canvas, canvas.known, (2, 3)))


def test_row_is_complete_when_all_before_the_first_stop_is_decided():
    yes, no = True, False
    assert ended([7, 2, 9, 9], [no, no, yes, yes])
    assert not ended([9, 2, 9, 9], [yes, no, yes, yes])
    assert ended([7, 3, 9, 9], [no, no, yes, yes])
    assert not ended([7, 8, 9, 9], [no, no, yes, yes])
    assert ended([7, 8, 6, 5], [no] * 4)
    # the token of a masked position does not count, whatever stands there
    assert not ended([7, 2, 9, 9], [no, yes, yes, yes])


def test_each_hole_is_completed_separately():
    yes, no = True, False
    holes = [yes, yes, no, yes, yes]
    assert not ended([2, 9, 5, 9, 9], [no, yes, no, yes, yes], holes)
    assert ended([2, 9, 5, 2, 9], [no, yes, no, no, yes], holes)
    # a stop token in the given text ends nothing
    assert not ended([7, 8, 2, 9, 9], [no, no, no, yes, yes], holes)


def test_stop_token_that_is_not_final_does_not_complete_a_row():
    canvas = blank([[5]], 3, mask_id=MASK, pad_id=PAD)
    where = torch.tensor([[False, True, False, False]])
    canvas = canvas.commit(where, torch.full_like(canvas.tokens, 2))
    assert bool(is_complete(canvas, canvas.known, (2,)))
    assert not bool(is_complete(canvas, canvas.known & ~where, (2,)))
