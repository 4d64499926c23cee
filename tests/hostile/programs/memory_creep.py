# why: many small allocations
# label: limit:memory limit:wall
data = []
while True:
    data.append(bytearray(1 << 20))
