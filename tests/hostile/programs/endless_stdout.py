# why: endless output
# label: limit:stdout
while True:
    print('y' * 1000)
