# why: a generator of all numbers
# label: not_json
import itertools
def f(x):
    return itertools.count()
