# why: exit with success inside the tested function
# label: early_exit
import os
def f(x):
    os._exit(0)
