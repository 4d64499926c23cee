# why: burn CPU in children only
import os
for _ in range(4):
    if os.fork() == 0:
        while True:
            pass
os.wait()
