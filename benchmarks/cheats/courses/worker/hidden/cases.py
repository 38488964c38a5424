"""Lists of words, and how often each of them occurs."""

from collections import Counter


def inputs(rng):
    return [[[f"w{rng.randrange(900)}" for _ in range(700)]] for _ in range(3)]


def reference(words):
    counts = Counter(words)
    return [counts[w] for w in words]
