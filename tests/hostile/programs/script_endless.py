# why: endless output from a script
# kind: script
while True:
    print('y' * 1000)
