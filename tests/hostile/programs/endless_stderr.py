# why: endless errors
# label: limit:stderr
import sys
while True:
    sys.stderr.write('y' * 1000)
