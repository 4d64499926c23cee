# why: endless empty lines from a child
# label: limit:stdout
import subprocess
subprocess.run(['/usr/local/bin/python3', '-c', 'while True: print()'])
