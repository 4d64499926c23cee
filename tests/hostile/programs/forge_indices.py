# why: result lines for tests that do not exist
# label: forged_result
import os
for index in (-1, 99, 10**30, True, None, 0.0, '0'):
    os.write(3, ('{"test": %s, "value": 1}\n' % str(index).lower()).encode())
os._exit(0)
