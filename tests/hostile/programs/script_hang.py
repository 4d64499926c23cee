# why: never read, never print
# label: limit:wall
# kind: script
import time
time.sleep(30)
