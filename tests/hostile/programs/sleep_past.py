# why: sleep past the timeout, then answer
# label: limit:wall
import time
def f(x):
    time.sleep(30)
    return 3 * x * x + 7
