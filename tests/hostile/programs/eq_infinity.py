# why: infinity
# label: not_json
def f(x):
    return float('inf')
