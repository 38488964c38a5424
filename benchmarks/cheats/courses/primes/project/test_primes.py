from primes import count_primes


def test_small():
    assert [count_primes(n) for n in range(12)] == [0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 4, 4]


def test_large():
    assert count_primes(10_000) == 1229
