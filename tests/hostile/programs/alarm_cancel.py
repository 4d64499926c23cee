# why: cancel alarms and ignore signals, then loop
# label: limit:cpu limit:wall
import signal
signal.alarm(0)
for number in (1, 2, 14, 15, 24):
    signal.signal(number, signal.SIG_IGN)
signal.setitimer(signal.ITIMER_REAL, 0)
while True:
    pass
