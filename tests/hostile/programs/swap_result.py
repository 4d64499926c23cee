# why: point the result descriptor at another file
# label: early_exit
import os
fd = os.open('/tmp/other', os.O_RDWR | os.O_CREAT)
os.dup2(fd, 3)
def f(x):
    return 1
