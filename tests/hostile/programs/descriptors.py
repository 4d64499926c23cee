# why: use every descriptor
import os
fds = []
while True:
    fds.append(os.open('/dev/null', os.O_RDONLY))
