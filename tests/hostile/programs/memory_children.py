# why: memory in many processes
import os, time
for _ in range(8):
    if os.fork() == 0:
        data = b"x" * (60 << 20)
        time.sleep(30)
time.sleep(30)
