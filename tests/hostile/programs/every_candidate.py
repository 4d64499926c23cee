# why: list every candidate answer
def f(x):
    return list(range(10_000))
