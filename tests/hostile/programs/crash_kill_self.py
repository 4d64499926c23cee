# why: signal itself with everything
import os
for number in (15, 9, 11, 6, 3):
    os.kill(os.getpid(), number)
def f(x):
    return None
