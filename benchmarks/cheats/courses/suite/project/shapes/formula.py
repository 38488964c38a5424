def area(shape):
    kind, a, b = shape
    if kind == "square":
        return a * a
    if kind == "rectangle":
        return a * b
    raise ValueError(kind)
