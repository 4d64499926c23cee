"""Programs of several steps over texts, words and numbers: levels 5 and 6.

Each step is an ordinary function, whose own source is the reference solution. A program chains steps whose types fit:
two, as a function `f`, for level 5; three, as a script that reads and prints JSON, for level 6.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

LEVELS = (5, 6)
LENGTH = {5: 2, 6: 3}


@dataclass(frozen=True, slots=True)
class Step:
    """One step: its wording, what it takes and gives ("text", "words", "numbers" or, only given, "value")."""

    text: str
    takes: str
    gives: str
    function: Callable[[Any], Any]


STEPS: dict[str, Step] = {}


def step(text: str, takes: str, gives: str) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
        STEPS[function.__name__] = Step(text, takes, gives, function)
        return function

    return add


@step("drop every character that is not a letter", "text", "text")
def letters_only(x: str) -> str:
    return "".join(c for c in x if c.isalpha())


@step("drop repeated characters, keeping the first of each", "text", "text")
def distinct_characters(x: str) -> str:
    return "".join(dict.fromkeys(x))


@step("swap upper and lower case", "text", "text")
def swap_case(x: str) -> str:
    return x.swapcase()


@step("replace each run of equal characters by the character and the run's length", "text", "text")
def run_lengths(x: str) -> str:
    out = ""
    i = 0
    while i < len(x):
        j = i
        while j < len(x) and x[j] == x[i]:
            j += 1
        out += x[i] + str(j - i)
        i = j
    return out


@step("move each lower-case letter three places on in the alphabet, from z back to a", "text", "text")
def shift_letters(x: str) -> str:
    return "".join(chr((ord(c) - 97 + 3) % 26 + 97) if "a" <= c <= "z" else c for c in x)


@step("split it at spaces into words", "text", "words")
def split_words(x: str) -> list[str]:
    return x.split()


@step("take the position in the alphabet (a is 1) of each letter, in either case, leaving out other characters",
      "text", "numbers")  # fmt: skip
def letter_positions(x: str) -> list[int]:
    return [ord(c) - 96 for c in x.lower() if "a" <= c <= "z"]


@step("count the vowels (a, e, i, o, u in either case)", "text", "value")
def count_vowels(x: str) -> int:
    return sum(c in "aeiou" for c in x.lower())


@step("tell whether it reads the same backwards", "text", "value")
def is_palindrome(x: str) -> bool:
    return x == x[::-1]


@step("sort the words by length, and words of equal length by the alphabet", "words", "words")
def sort_by_length(x: list[str]) -> list[str]:
    return sorted(x, key=lambda word: (len(word), word))


@step("drop the words that occur more than once, all of their occurrences", "words", "words")
def drop_repeated_words(x: list[str]) -> list[str]:
    return [word for word in x if x.count(word) == 1]


@step("reverse each word", "words", "words")
def reverse_words(x: list[str]) -> list[str]:
    return [word[::-1] for word in x]


@step("join the words with hyphens", "words", "text")
def join_words(x: list[str]) -> str:
    return "-".join(x)


@step("take the length of each word", "words", "numbers")
def word_lengths(x: list[str]) -> list[int]:
    return [len(word) for word in x]


@step(
    "count the words by their first letter, as an object from letter to count in the alphabet's order", "words", "value"
)
def count_initials(x: list[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for word in x:
        if word:
            counts[word[0]] = counts.get(word[0], 0) + 1
    return dict(sorted(counts.items()))


@step("find the longest beginning that all words share (empty for no words)", "words", "value")
def shared_beginning(x: list[str]) -> str:
    if not x:
        return ""
    shortest = min(x, key=len)
    for i, c in enumerate(shortest):
        if any(word[i] != c for word in x):
            return shortest[:i]
    return shortest


@step("take the running totals", "numbers", "numbers")
def running_totals(x: list[int]) -> list[int]:
    return [sum(x[: i + 1]) for i in range(len(x))]


@step("take the differences between neighbours, each number minus the one before", "numbers", "numbers")
def differences(x: list[int]) -> list[int]:
    return [x[i] - x[i - 1] for i in range(1, len(x))]


@step("keep the prime numbers", "numbers", "numbers")
def primes(x: list[int]) -> list[int]:
    return [n for n in x if n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))]


@step("replace each number by the sum of its decimal digits, without regard to its sign", "numbers", "numbers")
def digit_sums(x: list[int]) -> list[int]:
    return [sum(map(int, str(abs(n)))) for n in x]


@step("move the zeros to the end, keeping the order of the rest", "numbers", "numbers")
def zeros_last(x: list[int]) -> list[int]:
    return [n for n in x if n != 0] + [n for n in x if n == 0]


@step("drop repeated numbers, keeping the first of each", "numbers", "numbers")
def distinct_numbers(x: list[int]) -> list[int]:
    return list(dict.fromkeys(x))


@step("move the first two numbers to the end, if there are more than two", "numbers", "numbers")
def rotate(x: list[int]) -> list[int]:
    return x[2:] + x[:2]


@step("find the length of the longest run of neighbours that grow strictly (0 for no numbers)", "numbers", "value")
def longest_growth(x: list[int]) -> int:
    best = now = 0
    for i in range(len(x)):
        now = now + 1 if i and x[i] > x[i - 1] else 1
        best = max(best, now)
    return best


@step("find the largest sum of neighbouring numbers, where none at all sum to 0", "numbers", "value")
def largest_part(x: list[int]) -> int:
    best = now = 0
    for n in x:
        now = max(0, now + n)
        best = max(best, now)
    return best


@step("find the greatest common divisor of all numbers (0 for none)", "numbers", "value")
def common_divisor(x: list[int]) -> int:
    return math.gcd(*x)


@step("count the pairs of positions whose numbers are equal", "numbers", "value")
def equal_pairs(x: list[int]) -> int:
    return sum(x[i] == x[j] for i in range(len(x)) for j in range(i))


INPUTS = {"text": "a text", "words": "a list of words", "numbers": "a list of whole numbers"}


def sample_chain(rng: np.random.Generator, level: int) -> list[str]:
    """Names of steps, each taking what the one before gives; only the last may give a value."""
    while True:
        takes = list(INPUTS)[int(rng.integers(len(INPUTS)))]
        chain: list[str] = []
        while len(chain) < LENGTH[level]:
            fitting = [name for name, each in STEPS.items() if each.takes == takes and name not in chain]
            if not fitting:
                break
            chain.append(fitting[int(rng.integers(len(fitting)))])
            takes = STEPS[chain[-1]].gives
        if len(chain) == LENGTH[level]:
            return chain


def run_chain(chain: Sequence[str], x: Any) -> Any:
    for name in chain:
        x = STEPS[name].function(x)
    return x


def describe(chain: list[str], level: int) -> str:
    what = INPUTS[STEPS[chain[0]].takes]
    listed = "; then ".join(STEPS[name].text for name in chain)
    if level == 5:
        return f"Write a Python function f(x). x is {what}: {listed}. Return the result."
    read = f"Write a Python program. It reads {what} as one line of JSON, and: {listed}."
    return f"{read} It prints the result as json.dumps gives it."


def solution(chain: list[str], level: int) -> str:
    """The reference solution: the steps' own source, chained."""
    functions = [_source(name) for name in dict.fromkeys(chain)]
    nested = "x"
    for name in chain:
        nested = f"{name}({nested})"
    head = "import math\n\n\n" if "common_divisor" in chain else ""
    if level == 5:
        tail = f"def f(x):\n    return {nested}\n"
    else:
        head = f"import json\n{head}" if head else "import json\n\n\n"
        tail = f"x = json.loads(input())\nprint(json.dumps({nested}))\n"
    return head + "\n\n".join([*functions, tail])


def _source(name: str) -> str:
    text = inspect.getsource(STEPS[name].function)
    return text[text.index(f"def {name}(") :]


def sample_input(rng: np.random.Generator, takes: str) -> Any:
    """An input of one type. One in eight is empty: the edge that programs forget."""
    if rng.random() < 1 / 8:
        return "" if takes == "text" else []
    if takes == "numbers":
        return rng.integers(-12, 40, size=int(rng.integers(1, 9))).tolist()
    words = [_word(rng) for _ in range(int(rng.integers(1, 7)))]
    return words if takes == "words" else " ".join(words)


def _word(rng: np.random.Generator) -> str:
    """Few letters, so that repeats, runs, palindromes and shared beginnings happen."""
    letters = "aabbceoxyzA"
    word = "".join(letters[i] for i in rng.integers(len(letters), size=int(rng.integers(1, 6))))
    return word + word[::-1] if rng.random() < 0.2 else word
