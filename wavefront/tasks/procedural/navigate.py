"""Decide whether steps and turns lead back to the start, by writing the place after each one."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from wavefront.tasks.base import Draft, Procedural, Wordings, choose, draw_int, worked_answer

WORDINGS = Wordings(
    real="If you follow these instructions, do you return to the starting point? {}\n"
    "Options:\n- Yes\n- No",
    other=(
        "Do these instructions lead back to the starting point? {}",
        "You follow these instructions: {} Are you back at the starting point?",
    ),
    reserved=(
        "{} Is that where you began? Answer Yes or No.",
        "A robot is told: {} Does it end where it started?",
    ),
)
# Clockwise, so that a quarter turn to the right is the next direction.
FACINGS = (("north", 0, 1), ("east", 1, 0), ("south", 0, -1), ("west", -1, 0))
SIDES = ("forward", "right", "backward", "left")
TURNS = ("", "right", "around", "left")
MAX_STEPS = 10  # in one instruction

Move = tuple[str, int]  # ("turn", quarters to the right), ("", steps) or (side, steps)


@dataclass(frozen=True)
class Navigate(Procedural):
    """Half the items keep facing forward and step to the sides; half turn and walk."""

    kind = "yes_no"

    def draft(self, rng: Random, reserved: bool) -> Draft:
        sideways = rng.random() < 0.5
        returning = rng.random() < 0.8
        moves = sidesteps(rng, returning) if sideways else turns(rng, returning)
        if returning and rng.random() < 0.375:
            change_one(rng, moves)
        told = " ".join(map(sentence, moves))
        steps, home = walk(moves, sideways)
        if sideways:
            told = f"Always face forward. {told}"
        target = "Yes" if home else "No"
        question, original = WORDINGS.ask(rng, reserved, told)
        return Draft(question, worked_answer(steps, target), target, told, original=original)


def sidesteps(rng: Random, returning: bool) -> list[Move]:
    """Draw steps in the four directions. With `returning`, they sum to zero."""
    moves = [(choose(rng, SIDES), draw_int(rng, 1, MAX_STEPS)) for _ in range(draw_int(rng, 1, 5))]
    if returning:
        totals = [sum(steps for side, steps in moves if side == name) for name in SIDES]
        for ahead, behind in ((0, 2), (1, 3)):
            lacking = totals[ahead] - totals[behind]
            side = SIDES[behind if lacking > 0 else ahead]
            moves += [(side, steps) for steps in pieces(rng, abs(lacking))]
        rng.shuffle(moves)
    return moves


def turns(rng: Random, returning: bool) -> list[Move]:
    """Draw walks and turns. With `returning`, they end with the walk back along both axes."""
    moves: list[Move] = []
    facing, across, along = 0, 0, 0
    for _ in range(draw_int(rng, 2, 4 if returning else 8)):
        if rng.random() < 0.36:
            quarters = draw_int(rng, 1, 3)
            facing = (facing + quarters) % 4
            moves.append(("turn", quarters))
        else:
            steps = draw_int(rng, 1, MAX_STEPS)
            across += FACINGS[facing][1] * steps
            along += FACINGS[facing][2] * steps
            moves.append(("", steps))
    if returning:
        homeward = [(3 if across > 0 else 1, abs(across)), (2 if along > 0 else 0, abs(along))]
        rng.shuffle(homeward)
        for wanted, distance in homeward:
            if distance:
                quarters = (wanted - facing) % 4
                moves += [("turn", quarters)] if quarters else []
                moves += [("", steps) for steps in pieces(rng, distance)]
                facing = wanted
    return moves


def pieces(rng: Random, distance: int) -> list[int]:
    """Split the distance into one or more instructions."""
    parts: list[int] = []
    while distance > MAX_STEPS or (distance > 1 and not parts and rng.random() < 0.25):
        parts.append(draw_int(rng, 1, min(distance - 1, MAX_STEPS)))
        distance -= parts[-1]
    return [*parts, distance] if distance else parts


def change_one(rng: Random, moves: list[Move]) -> None:
    """Change one instruction in place, to turn a return into a near miss."""
    at = draw_int(rng, 0, len(moves) - 1)
    kind, amount = moves[at]
    if kind == "turn":
        moves[at] = (kind, amount % 3 + 1)
    else:
        moves[at] = (kind, amount % MAX_STEPS + 1)


def sentence(move: Move) -> str:
    kind, amount = move
    if kind == "turn":
        return f"Turn {TURNS[amount]}."
    side = f" {kind}" if kind else ""
    return f"Take {amount} step{'s' if amount > 1 else ''}{side}."


def walk(moves: list[Move], sideways: bool) -> tuple[str, bool]:
    """Return the place after every instruction, and whether the last one is the start."""
    facing, across, along = 0, 0, 0
    lines = ["(0, 0)" if sideways else "(0, 0) north"]
    for kind, amount in moves:
        if kind == "turn":
            facing = (facing + amount) % 4
            lines.append(f"{TURNS[amount]}: ({across}, {along}) {FACINGS[facing][0]}")
            continue
        name, right, ahead = FACINGS[SIDES.index(kind) if sideways else facing]
        across += right * amount
        along += ahead * amount
        place = f"({across}, {along})"
        lines.append(f"{amount} {kind}: {place}" if sideways else f"{amount}: {place} {name}")
    return "\n".join(lines), across == along == 0
