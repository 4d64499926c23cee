# why: directories nested too deep to remove by name
import os
os.chdir('/tmp')
for _ in range(3000):
    os.mkdir('d' * 200)
    os.chdir('d' * 200)
def f(x):
    return None
