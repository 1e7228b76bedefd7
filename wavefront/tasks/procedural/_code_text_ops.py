"""The operations of the task `code` on strings and on integers; see `_code_ops`."""

from __future__ import annotations

from wavefront.tasks.procedural._code_ops import op

VOWELS = "aeiou"

# fmt: off
TEXTS = (
    op("upper", "{v}.upper()", lambda v: "".join(c.upper() for c in v),
       "convert it to upper case / make all letters capital / write it in capitals"),
    op("lower", "{v}.lower()", lambda v: "".join(c.lower() for c in v),
       "convert it to lower case / make all letters small / write it in small letters"),
    op("swap", "{v}.swapcase()",
       lambda v: "".join(c.lower() if c.isupper() else c.upper() for c in v),
       "swap upper and lower case / turn small letters into capitals and capitals into small ones"
       " / invert the case"),
    op("capital", "{v}.capitalize()", lambda v: v[:1].upper() + v[1:].lower(),
       "capitalize it / make the first letter capital and the others small / write it like a name"),
    op("reverse", "{v}[::-1]", lambda v: "".join(reversed(v)),
       "reverse it / put its characters in reverse order / turn it around"),
    op("strip", "{v}.strip()", lambda v: v.lstrip().rstrip(),
       "strip the spaces at both ends / remove leading and trailing spaces / trim it"),
    op("no_spaces", "{v}.replace(' ', '')", lambda v: "".join(v.split(" ")),
       "remove all spaces / delete every space / leave the spaces out"),
    op("remove c=97-117", "{v}.replace('{c}', '')", lambda v, c: "".join(x for x in v if x != c),
       "remove every '{c}' / delete the letter '{c}' / leave '{c}' out"),
    op("replace c=97-109 d=110-122", "{v}.replace('{c}', '{d}')",
       lambda v, c, d: "".join(d if x == c else x for x in v),
       "replace every '{c}' by '{d}' / change each '{c}' to '{d}' / put '{d}' in place of '{c}'"),
    op("no_vowels", "''.join(c for c in {v} if c not in 'aeiou')",
       lambda v: v.translate({ord(c): None for c in VOWELS}),
       "remove the vowels a, e, i, o, u / keep only characters that are not one of 'aeiou'"
       " / leave out small vowels"),
    op("vowels", "''.join(c for c in {v} if c in 'aeiou')",
       lambda v: "".join(c for c in v if VOWELS.find(c) >= 0),
       "keep only the vowels a, e, i, o, u / keep only characters that are one of 'aeiou'"
       " / leave nothing but small vowels"),
    op("digits", "''.join(c for c in {v} if c.isdigit())",
       lambda v: "".join(c for c in v if "0" <= c <= "9"),
       "keep only the digits / remove everything but digits / leave nothing but digits"),
    op("letters", "''.join(c for c in {v} if c.isalpha())",
       lambda v: "".join(c for c in v if "a" <= c.lower() <= "z"),
       "keep only the letters / remove everything but letters / leave nothing but letters"),
    op("repeat k=2-4", "{v} * {k}", lambda v, k: "".join([v for _ in range(k)]),
       "repeat it {k} times / write it {k} times in a row / put {k} copies together"),
    op("take k=1-6", "{v}[:{k}]", lambda v, k: "".join(c for i, c in enumerate(v) if i < k),
       "keep the first {k} characters / take only the first {k} characters"
       " / cut it after {k} characters"),
    op("drop k=1-4", "{v}[{k}:]", lambda v, k: "".join(c for i, c in enumerate(v) if i >= k),
       "remove the first {k} characters / skip the first {k} characters"
       " / cut {k} characters off the front"),
    op("last k=1-5", "{v}[-{k}:]", lambda v, k: v[max(0, len(v) - k):],
       "keep the last {k} characters / take only the last {k} characters"
       " / cut it down to its final {k}"),
    op("every k=2-4", "{v}[::{k}]", lambda v, k: "".join(c for i, c in enumerate(v) if i % k == 0),
       "keep every {k}th character, starting with the first"
       " / take the characters at indices divisible by {k}"
       " / step through it in strides of {k}"),
    op("prefix c=97-122", "'{c}' + {v}", lambda v, c: f"{c}{v}",
       "put '{c}' at the front / add '{c}' at the beginning / let it begin with an extra '{c}'"),
    op("suffix c=97-122", "{v} + '{c}'", lambda v, c: f"{v}{c}",
       "append '{c}' / add '{c}' at the end / let it end with an extra '{c}'"),
    op("sort", "''.join(sorted({v}))",
       lambda v: "".join(x * v.count(x) for x in sorted(set(v))),
       "sort its characters / put its characters in order / arrange its characters by code"),
    op("double", "''.join(c + c for c in {v})", lambda v: "".join(2 * c for c in v),
       "double each character / write every character twice / duplicate its characters one by one"),
    op("words_back", "' '.join({v}.split()[::-1])", lambda v: " ".join(reversed(v.split())),
       "reverse the order of its words / put its words in reverse order / turn its words around"),
    op("word_sort", "' '.join(sorted({v}.split()))", lambda v: " ".join(sorted(v.split(), key=str)),
       "sort its words / put its words in alphabetical order / arrange its words from a to z"),
    op("first_word", "({v}.split() or [''])[0]", lambda v: next(iter(v.split()), ""),
       "keep only the first word / take its first word / cut it after one word"),
    op("hyphens", "{v}.replace(' ', '-')", lambda v: "-".join(v.split(" ")),
       "replace spaces by hyphens / change every space to '-' / put hyphens where the spaces are"),
)
TEXT_ENDS = (
    op("length", "len({v})", lambda v: sum(1 for _ in v),
       "its length / the number of characters / how long it is", "int"),
    op("count c=97-117", "{v}.count('{c}')", lambda v, c: sum(x == c for x in v),
       "how often '{c}' occurs / the number of times '{c}' appears / the count of '{c}'", "int"),
    op("words", "len({v}.split())", lambda v: len([w for w in v.split(" ") if w]),
       "the number of words / how many words it has / its word count", "int"),
    op("palindrome", "{v} == {v}[::-1]",
       lambda v: all(v[i] == v[-1 - i] for i in range(len(v) // 2)),
       "whether it is a palindrome / True if it reads the same backwards, else False"
       " / if it equals its mirror image", "bool"),
    op("starts c=97-117", "{v}.startswith('{c}')", lambda v, c: v[:1] == c,
       "whether it starts with '{c}' / True if the first character is '{c}', else False"
       " / if '{c}' comes first", "bool"),
    op("ends c=97-117", "{v}.endswith('{c}')", lambda v, c: v[-1:] == c,
       "whether it ends with '{c}' / True if the last character is '{c}', else False"
       " / if '{c}' comes last", "bool"),
    op("contains c=97-117", "'{c}' in {v}", lambda v, c: v.find(c) >= 0,
       "whether it contains '{c}' / True if '{c}' is in it, else False"
       " / if '{c}' can be found", "bool"),
    op("find c=97-117", "{v}.find('{c}')", lambda v, c: v.index(c) if c in v else -1,
       "the index of the first '{c}', or -1 / the position of '{c}' in it, or -1 if it is missing"
       " / where '{c}' stands first (-1 for nowhere)", "int"),
    op("distinct", "len(set({v}))", lambda v: len(dict.fromkeys(v)),
       "the number of different characters / how many distinct characters it has"
       " / its count of unique characters", "int"),
    op("split", "{v}.split()", lambda v: [w for w in v.split(" ") if w],
       "the list of its words / its words as a list / a list with each word", "list[str]"),
    op("word_lengths", "[len(w) for w in {v}.split()]", lambda v: list(map(len, v.split())),
       "the list of the lengths of its words / the length of each word, as a list"
       " / word lengths in a list", "list[int]"),
    op("longest", "max({v}.split(), key=len, default='')",
       lambda v: next(iter(sorted(v.split(), key=len, reverse=True)), ""),
       "its longest word, or '' / the longest word (the first of equals), or an empty string"
       " / the word with most characters ('' without any)", "str"),
)

WHOLES = (
    op("add k=2-40", "{v} + {k}", lambda v, k: v - -k,
       "add {k} / increase it by {k} / make it {k} larger"),
    op("subtract k=2-40", "{v} - {k}", lambda v, k: v + -k,
       "subtract {k} / decrease it by {k} / make it {k} smaller"),
    op("times k=2-12", "{v} * {k}", lambda v, k: sum(v for _ in range(k)),
       "multiply it by {k} / make it {k} times as large / scale it by {k}"),
    op("floor k=2-9", "{v} // {k}", lambda v, k: divmod(v, k)[0],
       "divide it by {k}, rounding down / floor-divide it by {k}"
       " / cut it to a {k}th, rounded down"),
    op("modulo k=3-30", "{v} % {k}", lambda v, k: divmod(v, k)[1],
       "take it modulo {k} / take the remainder when divided by {k} / reduce it modulo {k}"),
    op("square", "{v} * {v}", lambda v: v**2,
       "square it / multiply it by itself / raise it to the power 2"),
    op("absolute", "abs({v})", lambda v: v if v >= 0 else 0 - v,
       "take its absolute value / make it nonnegative by dropping its sign / drop its sign"),
    op("negate", "-{v}", lambda v: 0 - v, "negate it / change its sign / flip its sign"),
    op("cap k=10-60", "min({v}, {k})", lambda v, k: k if v > k else v,
       "limit it to at most {k} / replace it by {k} if it is larger / clip it at {k}"),
    op("raise k=0-20", "max({v}, {k})", lambda v, k: k if v < k else v,
       "make it at least {k} / replace it by {k} if it is smaller / clip it from below at {k}"),
    op("digit_sum", "sum(int(c) for c in str(abs({v})))", lambda v: sum(map(int, str(abs(v)))),
       "take the sum of its digits / replace it by its digit sum / add up its digits"),
    op("half_or j=1-9", "{v} // 2 if {v} % 2 == 0 else {v} + {j}",
       lambda v, j: v + j if v & 1 else v >> 1,
       "halve it if it is even, otherwise add {j} / divide it by 2 if even and add {j} if odd"
       " / when even take half, when odd go up by {j}"),
    op("branch k=5-30 j=2-9", "{v} * {j} if {v} > {k} else {v} + {j}",
       lambda v, k, j: v + j if v <= k else v * j,
       "multiply it by {j} if it is greater than {k}, otherwise add {j}"
       " / if it is above {k} multiply it by {j}, else increase it by {j}"
       " / when it exceeds {k} scale it by {j}, when not go up by {j}"),
)
WHOLE_ENDS = (
    op("even", "{v} % 2 == 0", lambda v: not v & 1,
       "whether it is even / True if it is even, else False / if 2 divides it", "bool"),
    op("divisible k=3-12", "{v} % {k} == 0", lambda v, k: v // k * k == v,
       "whether it is divisible by {k} / True if it is a multiple of {k}, else False"
       " / if {k} divides it",
       "bool"),
    op("above k=5-40", "{v} > {k}", lambda v, k: not v <= k,
       "whether it is greater than {k} / True if it is above {k}, else False"
       " / if it exceeds {k}", "bool"),
    op("text", "str({v})", lambda v: f"{v}",
       "it as a string / its decimal string / its digits as text", "str"),
    op("digits", "len(str(abs({v})))", lambda v: len(str(v).lstrip("-")),
       "its number of digits / how many digits it has / its digit count", "int"),
    op("binary", "bin({v})[2:] if {v} >= 0 else ''", lambda v: f"{v:b}" if v >= 0 else "",
       "it in binary, or '' if it is negative / its binary digits as a string ('' if negative)"
       " / its form in base 2 ('' below zero)", "str"),
)
# fmt: on
