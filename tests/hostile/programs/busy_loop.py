# why: loop in C, where Python handles no signal
# label: limit:cpu limit:wall
def f(x):
    return sum(range(10**12))
