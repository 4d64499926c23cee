# why: a daemon that survives into the next program
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            try:
                with open("/tmp/daemon", "a") as file:
                    file.write("here")
            except OSError:
                pass
            time.sleep(0.01)
    os._exit(0)
os.wait()
def f(x):
    return None
