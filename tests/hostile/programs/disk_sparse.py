# why: one enormous sparse file
with open('/tmp/sparse', 'wb') as file:
    file.truncate(1 << 40)
    file.seek(1 << 40)
    file.write(b'x')
