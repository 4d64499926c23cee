# why: an expression that the compiler cannot hold
def f(x):
    return eval('(' * 100_000 + ')' * 100_000)
