# why: a syntax error that hides the tests
# label: syntax_error
def f(x):
    return (
