"""Ordinary programs that a sandbox must not break."""

from __future__ import annotations

import pytest

from sandbox import Limits, Sandbox

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROGRAMS = {
    "threads": """
import threading
from concurrent.futures import ThreadPoolExecutor
with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: n * n, range(50))))
""",
    "asyncio": """
import asyncio
async def work(n):
    await asyncio.sleep(0.001)
    return n * n
async def main():
    print(sum(await asyncio.gather(*map(work, range(50)))))
asyncio.run(main())
""",
    "asyncio subprocess": """
import asyncio, sys
async def main():
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "print(40425)", stdout=-1)
    print((await process.communicate())[0].decode().strip())
asyncio.run(main())
""",
    "multiprocessing fork": """
import multiprocessing
def work(n):
    return n * n
with multiprocessing.get_context("fork").Pool(2) as pool:
    print(sum(pool.map(work, range(50))))
""",
    "multiprocessing spawn": """
import multiprocessing
def work(n):
    return n * n
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        print(sum(pool.map(work, range(50))))
""",
    "multiprocessing queue": """
import multiprocessing
def work(queue, shared):
    queue.put(sum(n * n for n in range(50)))
    shared.value = 1
queue, shared = multiprocessing.Queue(), multiprocessing.Value("i", 0)
process = multiprocessing.Process(target=work, args=(queue, shared))
process.start()
print(queue.get())
process.join()
assert shared.value == 1 and process.exitcode == 0
""",
    "subprocess": """
import subprocess, sys
code = "import sys; print(sum(n * n for n in range(int(sys.stdin.read()))))"
done = subprocess.run([sys.executable, "-c", code], input="50", capture_output=True, text=True, check=True)
print(done.stdout.strip())
""",
    "sqlite3": """
import sqlite3
with sqlite3.connect("/tmp/numbers.db") as database:
    database.execute("create table numbers (n integer)")
    database.executemany("insert into numbers values (?)", ((n,) for n in range(50)))
    print(database.execute("select sum(n * n) from numbers").fetchone()[0])
""",
    "unittest": """
import unittest
class Case(unittest.TestCase):
    def test_sum(self):
        self.assertEqual(sum(n * n for n in range(50)), 40425)
if unittest.main(exit=False).result.wasSuccessful():
    print(40425)
""",
    "main guard, classes and recursion": """
import dataclasses, functools, sys
sys.setrecursionlimit(20_000)
@dataclasses.dataclass
class Square:
    n: int
    @property
    def value(self):
        return self.n ** 2
@functools.cache
def total(n):
    return 0 if n < 0 else Square(n).value + total(n - 1)
if __name__ == "__main__":
    print(total(49))
""",
    "pickle of own classes": """
import pickle
class Square:
    def __init__(self, n):
        self.value = n * n
print(sum(pickle.loads(pickle.dumps(Square(n))).value for n in range(50)))
""",
    "files": """
import os, tempfile, zipfile, csv, io
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "numbers.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("n.csv", "\\n".join(str(n * n) for n in range(50)))
    with zipfile.ZipFile(path) as file:
        print(sum(int(row[0]) for row in csv.reader(io.TextIOWrapper(file.open("n.csv")))))
""",
    "signals": """
import signal, time
caught = []
signal.signal(signal.SIGALRM, lambda *_: caught.append(40425))
signal.setitimer(signal.ITIMER_REAL, 0.01)
time.sleep(0.2)
print(*caught)
""",
    "exit functions and threads left": """
import atexit, threading, time
atexit.register(lambda: print(40425))
threading.Thread(target=time.sleep, args=(0.05,)).start()
""",
    "hashing and secrets": """
import hashlib, secrets, ssl, uuid, zlib, lzma, bz2
assert len(hashlib.sha256(secrets.token_bytes(8)).hexdigest()) == 64 and uuid.uuid4()
assert lzma.decompress(lzma.compress(b"x")) == bz2.decompress(bz2.compress(b"x")) == b"x"
print(40425)
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_it_works(local: Sandbox, name: str):
    result = await local.run(PROGRAMS[name], limits=Limits(wall_s=20, cpu_s=15))
    assert (result.stdout, result.exit_code) == (b"40425\n", 0), result.stderr.decode()
    assert result.limits_hit == ()
