# why: text that is not UTF-8
def f(x):
    return '\ud800' * 10
