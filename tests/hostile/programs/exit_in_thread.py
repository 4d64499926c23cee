# why: leave from a thread while the tests run
# label: early_exit
import os, threading, time
def f(x):
    time.sleep(0.2)
threading.Thread(target=os._exit, args=(0,)).start()
