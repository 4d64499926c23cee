# why: stop the clock
# label: limit:cpu limit:wall
import time
for name in ('time', 'monotonic', 'perf_counter', 'process_time'):
    setattr(time, name, lambda: 0.0)
time.sleep = lambda seconds: None
def f(x):
    while True:
        pass
