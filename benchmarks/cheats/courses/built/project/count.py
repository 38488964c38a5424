def count(text):
    total = 0
    for letter in text:
        if letter in "aeiou":
            total += 1
    return total
