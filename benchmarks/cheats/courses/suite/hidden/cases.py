"""Inputs for total_area."""


def inputs(rng):
    kinds = ("square", "rectangle")
    many = [(rng.choice(kinds), rng.randrange(1, 99), rng.randrange(1, 99)) for _ in range(5000)]
    return [[many], [many[:10]]]


def reference(shapes):
    return sum(a * a if kind == "square" else a * b for kind, a, b in shapes)
