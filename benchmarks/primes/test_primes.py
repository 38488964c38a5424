"""Tests of primes.py; run them with `python3 -m unittest` or pytest."""

import unittest

from primes import count_primes


class CountPrimes(unittest.TestCase):
    def test_small(self):
        found = [count_primes(n) for n in range(12)]
        self.assertEqual(found, [0, 0, 0, 1, 2, 2, 3, 3, 4, 4, 4, 4])

    def test_no_primes(self):
        self.assertEqual(count_primes(-5), 0)

    def test_squares_are_no_primes(self):
        self.assertEqual(count_primes(49), 15)
        self.assertEqual(count_primes(50), 15)

    def test_large(self):
        self.assertEqual(count_primes(10_000), 1229)

    def test_plain_int(self):
        self.assertIs(type(count_primes(100)), int)


if __name__ == "__main__":
    unittest.main()
