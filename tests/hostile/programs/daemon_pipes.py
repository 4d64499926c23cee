# why: a daemon that keeps the output open
# label: early_exit
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(30)
os._exit(0)
