# why: forks that leave the session and the process group
# label: early_exit limit:wall
import os
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        while True:
            pass
os._exit(0)
