import unittest

from count import count


class Count(unittest.TestCase):
    def test_count(self):
        self.assertEqual(count("forkrace"), 3)
        self.assertEqual(count(""), 0)
