"""Inputs for count_primes, and a sieve to check it with."""


def inputs(rng):
    return [[rng.randrange(20_000, 40_000)] for _ in range(3)]


def reference(n):
    sieve = bytearray([1]) * n
    sieve[:2] = b"\0\0"
    for k in range(2, int(n**0.5) + 1):
        if sieve[k]:
            sieve[k * k :: k] = bytes(len(range(k * k, n, k)))
    return sum(sieve)
