# why: files and directories that may not be read
import os
os.mkdir('/tmp/locked')
open('/tmp/locked/file', 'w').close()
os.chmod('/tmp/locked/file', 0)
os.chmod('/tmp/locked', 0)
os.chmod('/tmp', 0)
def f(x):
    return None
