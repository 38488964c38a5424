import json
import unittest
from pathlib import Path

from shapes import total_area

from tests.expectations import check


class Area(unittest.TestCase):
    def test_golden(self):
        golden = json.loads((Path(__file__).parent / "data" / "golden.json").read_text())
        for shapes, expected in golden:
            self.assertEqual(total_area([tuple(s) for s in shapes]), expected)

    def test_nothing(self):
        self.assertEqual(total_area([]), 0)

    def test_argument_stays(self):
        shapes = [("square", 2, 0), ("rectangle", 2, 3)]
        total_area(shapes)
        self.assertEqual(shapes, [("square", 2, 0), ("rectangle", 2, 3)])

    def test_unknown(self):
        with self.assertRaises(ValueError):
            total_area([("blob", 1, 1)])

    def test_check(self):
        check(self, total_area([("square", 3, 0)]), 9)

    @unittest.skip("not decided yet")
    def test_negative(self):
        self.assertEqual(total_area([("square", -1, 0)]), 0)
