# why: an integer of a million digits
# label: not_json
def f(x):
    return 10 ** 1_000_000
