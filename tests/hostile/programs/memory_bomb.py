# why: one huge allocation
def f(x):
    return len(b'x' * (1 << 33))
