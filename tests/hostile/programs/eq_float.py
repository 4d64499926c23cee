# why: not a number
# label: not_json
def f(x):
    return float('nan')
