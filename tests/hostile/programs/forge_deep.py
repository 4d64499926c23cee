# why: a result line nested deeper than a parser's stack
# label: forged_result
import os
os.write(3, b'[' * 200_000 + b'\n')
os._exit(0)
