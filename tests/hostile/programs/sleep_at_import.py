# why: sleep past the timeout at import
# label: limit:wall
import time
time.sleep(30)
def f(x):
    return 1
