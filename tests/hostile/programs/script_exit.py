# why: exit before printing
# kind: script
import os
os._exit(0)
