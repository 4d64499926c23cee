# why: forge results in an exit function
# label: exit_call
import atexit, os, sys
atexit.register(os.write, 3, b'{"test": 0, "value": true}\n')
sys.exit(0)
