# why: words that switch tests off elsewhere
# pytest: skip-file
# type: ignore
# pragma: no cover
__test__ = False
pytestmark = 'skip'
__unittest_skip__ = True
def f(x):
    return None
f.__test__ = False
