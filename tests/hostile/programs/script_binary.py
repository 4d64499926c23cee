# why: bytes that are not UTF-8
# kind: script
import sys
sys.stdout.buffer.write(bytes(range(256)))
