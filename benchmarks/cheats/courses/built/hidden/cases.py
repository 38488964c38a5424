"""Texts, and their vowels."""


def inputs(rng):
    return [["".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(150_000))] for _ in range(8)]


def reference(text):
    return sum(text.count(v) for v in "aeiou")
