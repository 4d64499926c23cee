# why: a value nested deeper than any parser's stack
# label: not_json
def f(x):
    value = []
    for _ in range(100_000):
        value = [value]
    return value
