# why: shared anonymous memory
# label: limit:memory limit:wall
import mmap
data = []
while True:
    block = mmap.mmap(-1, 16 << 20)
    for at in range(0, len(block), 4096):
        block[at] = 1
    data.append(block)
