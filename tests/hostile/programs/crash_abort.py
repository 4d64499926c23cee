# why: abort
import os
os.abort()
