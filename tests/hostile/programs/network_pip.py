# why: install a package
import subprocess, sys
def f(x):
    return subprocess.run([sys.executable, '-m', 'pip', 'install', 'requests'], capture_output=True, timeout=5).returncode == 0
