# why: replace the harness by a program that succeeds
# label: early_exit
import os
os.execv("/usr/local/bin/python3", ["python3", "-c", "print(1)"])
