"""Print how many milliseconds it takes to count the primes below a million."""

import time

from primes import count_primes

LIMIT = 1_000_000
EXPECTED = 78_498

began = time.perf_counter()
found = count_primes(LIMIT)
ended = time.perf_counter()
if found != EXPECTED:
    raise SystemExit(f"count_primes({LIMIT}) is {found}, not {EXPECTED}")
print(round((ended - began) * 1000, 3))
