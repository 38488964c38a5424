import timeit

from primes import count_primes

assert count_primes(60_000) == 6057
print(round(min(timeit.repeat(lambda: count_primes(60_000), number=1, repeat=3)) * 1000, 2))
