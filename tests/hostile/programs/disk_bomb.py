# why: fill the disk
number = 0
while True:
    number += 1
    with open(f'/tmp/{number}', 'wb') as file:
        for _ in range(30):
            file.write(b'x' * 100_000)
