# why: an endless result
# label: limit:result
import os
while True:
    os.write(3, b'{"test": 0, "value": 1}\n' * 100)
