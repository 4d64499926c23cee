# why: bytes that are not UTF-8 in the result
# label: forged_result
import os
os.write(3, bytes(range(256)) * 16)
os._exit(0)
