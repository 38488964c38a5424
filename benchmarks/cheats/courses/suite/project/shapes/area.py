from shapes.formula import area


def total_area(shapes):
    """The sum of the areas of (kind, a, b) triples, in whole units; it does not change its argument."""
    total = 0
    for index in range(len(shapes)):
        for other in range(index, index + 1):
            total = sum([total, area(list(shapes)[other])])
    return total
