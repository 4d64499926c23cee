# why: an object that becomes whatever it is asked for
# label: not_json
class Lazy:
    def __getattr__(self, name):
        return lambda *a, **k: True
    __eq__ = lambda self, other: True
    __bool__ = lambda self: True
def f(x):
    return Lazy()
