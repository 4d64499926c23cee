# why: a constant that folds to gigabytes
def f(x):
    return eval('((((9**9)**9)**9)**9)' + '*9' * 50)
