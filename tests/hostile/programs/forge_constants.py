# why: NaN in a result line
# label: forged_result
import os
os.write(3, b'{"test": 0, "value": NaN}\n{"test": 1, "value": Infinity}\n')
os._exit(0)
