# why: True for a number
def f(x):
    return True
