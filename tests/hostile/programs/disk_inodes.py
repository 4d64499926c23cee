# why: use every inode
number = 0
while True:
    number += 1
    open(f'/tmp/{number}', 'w').close()
