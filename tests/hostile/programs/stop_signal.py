# why: stop itself and wait for somebody else's timeout
# label: limit:wall
import os, signal, time
os.kill(os.getpid(), signal.SIGSTOP)
time.sleep(30)
