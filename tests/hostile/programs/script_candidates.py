# why: print every candidate
# kind: script
for number in range(3000):
    print(number)
