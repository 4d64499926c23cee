# why: a value that contains itself
# label: not_json
def f(x):
    value = []
    value.append(value)
    return value
