# why: a regular expression that never ends
# label: limit:cpu limit:wall
import re
def f(x):
    return bool(re.match(r'(a+)+$', 'a' * 60 + 'b'))
