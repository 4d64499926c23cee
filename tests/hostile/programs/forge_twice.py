# why: write each result line twice, and an end
# label: forged_result
import os
for _ in range(2):
    for index in range(10):
        os.write(3, b'{"test": %d, "value": true}\n' % index)
    os.write(3, b'{"end": true}\n')
os._exit(0)
