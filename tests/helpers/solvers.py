"""Solvers that are independent of the generators: they read only the question."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from itertools import permutations, product

SMALL = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
SMALL += ["eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen"]
AMOUNT = {"a": 1, "an": 1} | {word: number for number, word in enumerate(SMALL)}


def options(question: str) -> dict[str, str]:
    return dict(re.findall(r"^\(([A-Z])\) (.*)$", question, re.MULTILINE))


def letter(question: str, text: str) -> str:
    found = [key for key, value in options(question).items() if value == text]
    assert len(found) == 1, (text, question)
    return f"({found[0]})"


def evaluate(node: ast.AST) -> int | bool:
    match node:
        case ast.Expression(body):
            return evaluate(body)
        case ast.Constant(bool() | int() as value):
            return value
        case ast.BoolOp(ast.And(), values):
            return all(evaluate(value) for value in values)
        case ast.BoolOp(ast.Or(), values):
            return any(evaluate(value) for value in values)
        case ast.UnaryOp(ast.Not(), operand):
            return not evaluate(operand)
        case ast.UnaryOp(ast.USub(), operand):
            return -evaluate(operand)
        case ast.BinOp(left, ast.Add(), right):
            return evaluate(left) + evaluate(right)
        case ast.BinOp(left, ast.Sub(), right):
            return evaluate(left) - evaluate(right)
        case ast.BinOp(left, ast.Mult(), right):
            return evaluate(left) * evaluate(right)
    raise AssertionError(ast.dump(node))


def boolean_expressions(question: str) -> str:
    runs = re.findall(r"(?:(?:\b(?:True|False|and|or|not)\b|[()])\s*)+", question)
    return str(evaluate(ast.parse(runs[-1].strip(), mode="eval")))


def multistep_arithmetic_two(question: str) -> str:
    text = question[question.index("((") : question.rindex("))") + 2]
    return str(evaluate(ast.parse(text, mode="eval")))


KINDS = {
    "fruits": "appl banan blackberr grape nectarin orang peach plum raspberr strawberr mango"
    " cherr pear lemon",
    "vegetables": "cabbag carrot cauliflow garlic broccoli lettuce onion potato celery yam radish"
    " turnip pepper",
    "musical instruments": "accordion clarinet drum flute piano trombone trumpet violin guitar"
    " cello harp",
    "animals": "bear cat chicken cow dog donkey duck fish frog goat mouse mice pig rabbit snail"
    " snake horse goose geese sheep",
}


def object_counting(question: str) -> str:
    kind = next(k for k in [*KINDS, "objects"] if re.search(rf"\b{k}\b", question))
    told = re.split(r"(?:have|are|see|owns) ", question, maxsplit=1)[1]
    told = re.split(r"\.| here\b", told)[0]
    total = 0
    for part in re.split(r", (?:and )?", told):
        amount, name = part.split(" ", 1)
        words = name.split()
        mine = any(word.startswith(stem) for word in words for stem in KINDS.get(kind, "").split())
        total += AMOUNT[amount] * (mine or kind == "objects")
    return str(total)


def navigate(question: str) -> str:
    place, heading = 0j, 1j
    sides = {"forward": 1j, "backward": -1j, "left": -1, "right": 1, "": 0}
    turns = {"left": 1j, "right": -1j, "around": -1}
    pattern = r"Turn (left|right|around)\.|Take (\d+) steps?(?: (forward|backward|left|right))?\."
    for turn, steps, side in re.findall(pattern, question):
        if turn:
            heading *= turns[turn]
        else:
            place += int(steps) * (sides[side] or heading)
    return "Yes" if place == 0 else "No"


def web_of_lies(question: str) -> str:
    truth = r"(tells the truth|is honest|lies|is a liar)"
    claims = re.findall(rf"(\w+) says (\w+) {truth}", question)
    known = re.findall(rf"(?:^|: |\. )(\w+) {truth}\.", question)
    people = sorted({name for claim in claims for name in claim[:2]})
    true = ("tells the truth", "is honest")
    verdicts = set()
    for values in product((False, True), repeat=len(people)):
        honest = dict(zip(people, values, strict=True))
        fits = all(honest[who] == (what in true) for who, what in known) and all(
            honest[who] == (honest[whom] == (what in true)) for who, whom, what in claims
        )
        if fits:
            asked = re.search(r"(?:Does|believe|Is) (\w+)", question[question.rindex(".") :])
            assert asked
            verdicts.add(honest[asked.group(1)])
    (verdict,) = verdicts
    return "Yes" if verdict else "No"


def dyck_languages(question: str) -> str:
    text = re.findall(r"[()\[\]{}<>](?: ?[()\[\]{}<>])*", question)[-1].replace(" ", "")
    while (shorter := re.sub(r"\(\)|\[\]|\{\}|<>", "", text)) != text:
        text = shorter
    return " ".join(text[::-1].translate(str.maketrans("([{<", ")]}>")))


def word_sorting(question: str) -> str:
    words = question.split(": ")[-1].removesuffix(". Arrange it alphabetically.").split()
    out: list[str] = []
    while words:
        out.append(words.pop(min(range(len(words)), key=words.__getitem__)))
    return " ".join(out)


def tracking_shuffled_objects(question: str) -> str:
    people = r"(Alice|Bob|Claire|Dave|Eve|Fred|Gertrude)"
    start, rest = question.split("\n")[:2]
    held = {}
    for thing in options(question).values():
        name = re.findall(rf"{people} [a-z ]*?{re.escape(thing)}(?=,|\.)", start)
        held[name[0]] = thing
    for first, second in re.findall(rf"(?:First|Then|Finally), {people} and {people} ", rest):
        held[first], held[second] = held[second], held[first]
    asked = re.findall(people, rest)[-1]
    return letter(question, held[asked])


LAST = ("rightmost", "newest", "last", "most expensive", "highest", "from the right", "-to-last")
LAST += ("-newest", "-most expensive", "from the top")


def placement(text: str, count: int) -> int:
    """Convert `second from the right` of five to 3, counting from the first pole."""
    nth = next((n for n, w in enumerate(["second", "third", "fourth"], 1) if w in text), 0)
    return count - 1 - nth if any(text.endswith(end) for end in LAST) else nth


BEFORE = ("to the left of", "older than", "finished above", "less expensive than", "below")
BEFORE += ("arrived before",)


def logical_deduction(question: str) -> str:
    body, _, _ = question.partition("\nOptions:")
    names = re.split(r", and |, ", re.findall(r": (.*?)\. ", body)[-1])
    names = [re.sub(r"^an? ", "", name) for name in names]
    count = len(names)
    pattern = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    rules: list[Callable[[dict[str, int]], bool]] = []
    for said in body.split(": ", 1)[1].split(". ")[1:]:
        mentioned = re.findall(pattern, said)
        if len(mentioned) == 2:
            first, second = mentioned
            golf_below = "finished below" in said
            if golf_below or not any(word in said for word in BEFORE):
                first, second = second, first
            rules.append(lambda at, a=first, b=second: at[a] < at[b])
        else:
            where = placement(said.rstrip("."), count)
            rules.append(lambda at, a=mentioned[0], n=where: at[a] == n)
    answers = set()
    asked = placement(next(iter(options(question).values())), count)
    for order in permutations(range(count)):
        at = dict(zip(names, order, strict=True))
        if all(rule(at) for rule in rules):
            answers.add(next(name for name in names if at[name] == asked))
    (answer,) = answers
    chosen = [
        key for key, text in options(question).items() if re.findall(pattern, text) == [answer]
    ]
    return f"({chosen[0]})"


def temporal_sequences(question: str) -> str:
    def hour(text: str) -> int:
        return int(text[:-2]) % 12 + 12 * text.endswith("pm")

    woke = hour(re.findall(r"woke up at (\w+)", question)[0])
    closed = hour(re.findall(r"closed after (\w+)", question)[0])
    busy: set[int] = set()
    for first, last in re.findall(r" saw .* from (\w+) to (\w+)\.", question):
        busy |= set(range(hour(first), hour(last)))
    free = set(range(woke, closed)) - busy
    fits = []
    for key, text in options(question).items():
        first, last = text.split(" to ")
        if set(range(hour(first), hour(last))) <= free:
            fits.append(key)
    (only,) = fits
    return f"({only})"


ADJECTIVES = (
    "awful good lovely mysterious nice obnoxious repulsive ridiculous silly terrible wonderful",
    "big enormous huge large little massive medium-size midsize normal-size small tiny",
    "ancient archaic brand-new new old old-fashioned",
    "circular prismlike pyramidal rectangular spherical square triangular",
    "black blue brown gray green grey orange pink purple red tan white yellow",
    "American Bangladeshi Brazilian Chinese Congolese Egyptian Ethiopian Filipino German Indian"
    " Indonesian Iranian Japanese Mexican Nigerian Pakistani Russian Thai Turkish Vietnamese",
    "cardboard cloth fiberglass glass gold iron lead leather paper plastic rubber silver steel wood"
    " wool",
)


def hyperbaton(question: str) -> str:
    def violations(phrase: str) -> int:
        ranks = []
        for word in phrase.split()[:-1]:
            known = [rank for rank, text in enumerate(ADJECTIVES) if word in text.split()]
            ranks.append(known[0] if known else len(ADJECTIVES))
        return sum(a > b for i, a in enumerate(ranks) for b in ranks[i + 1 :])

    scores = {key: violations(phrase) for key, phrase in options(question).items()}
    return "(A)" if scores["A"] < scores["B"] else "(B)"


def reasoning_about_colored_objects(question: str) -> str:
    body = question.partition("\nOptions:")[0]
    told, asked = re.match(r"On the \w+, (.*?)\. (.*)$", body, re.DOTALL).groups()  # type: ignore[union-attr]
    told = re.sub(r"^.*row: |^(?:I see|you see|there is|there are) ", "", told)
    heaps = []
    for part in re.split(r", and |, | and ", told):
        amount, color, name = part.split(" ", 2)
        heaps.append((AMOUNT[amount], color, _single(name) if AMOUNT[amount] > 1 else name))
    return letter(question, _answer(heaps, asked))


def _answer(heaps: list[tuple[int, str, str]], asked: str) -> str:
    colors = [color for _, color, _ in heaps]
    names = [name for _, _, name in heaps]

    def where(text: str) -> int:
        text = re.sub(r" (?:thing|object|item)$", "", text)
        return colors.index(text) if text in colors else names.index(text)

    if found := re.match(r"Is the (.*) (\w+)\?", asked):
        return "yes" if colors[names.index(found[1])] == found[2] else "no"
    if found := re.match(r"What color is the (.*)\?", asked):
        return colors[names.index(found[1])]
    if found := re.match(r"How many \w+ are neither (\w+) nor (\w+)\?", asked):
        return SMALL[sum(color not in found.groups() for color in colors)]
    if found := re.match(r"If I remove all the (.*) from the \w+, how many (.*) remain", asked):
        removed, kept = (re.sub(r" (?:things|objects|items)$", "", text) for text in found.groups())
        singular = [{text, _single(text)} for text in (removed, kept)]
        total = 0
        for (amount, color, _), name in zip(heaps, names, strict=True):
            gone = bool({color, name} & singular[0])
            total += amount * (not gone and bool({color, name} & singular[1]))
        return SMALL[total]
    if found := re.match(r"How many non-(\w+) \w+ do you see to the (\w+) of the (.*)\?", asked):
        at = where(found[3])
        side = colors[at + 1 :] if found[2] == "right" else colors[:at]
        return SMALL[sum(color != found[1] for color in side)]
    if found := re.match(r"What is the color of the (left|right)-most", asked):
        return colors[0 if found[1] == "left" else -1]
    if found := re.match(r".*directly to the (left|right) of the (.*)\?", asked):
        return colors[where(found[2]) + (1 if found[1] == "right" else -1)]
    found = re.match(r".*furthest from the (.*)\?", asked)
    assert found, asked
    at = where(found[1])
    return max(enumerate(colors), key=lambda pair: abs(pair[0] - at))[1]


def _single(text: str) -> str:
    text = re.sub(r"^(pair|sheet)s ", r"\1 ", text)
    return re.sub(r"(leash)es$|(?<!glasse)s$", r"\1", text)


SOLVERS: dict[str, Callable[[str], str]] = {
    solver.__name__: solver
    for solver in (
        *(boolean_expressions, multistep_arithmetic_two, object_counting, navigate, web_of_lies),
        *(dyck_languages, word_sorting, hyperbaton, temporal_sequences),
        reasoning_about_colored_objects,
    )
}
for _size in ("three", "five", "seven"):
    SOLVERS[f"tracking_shuffled_objects_{_size}_objects"] = tracking_shuffled_objects
    SOLVERS[f"logical_deduction_{_size}_objects"] = logical_deduction
