"""How many trajectories a second can one trainer take in, and what does a group cost it?

    python -m benchmarks.wire

Worker processes send groups of episodes over the real link as fast as they are acknowledged; the trainer's end decodes
and checks them and hands them to a callback that only counts. The processes share the machine's cores, so the CPU time
of the trainer's process is reported apart: `cpu_ms` a group, and `cpu_mb_per_s`, what one core takes in if it does
nothing else. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import queue
import random
import tempfile
import time

from envs.types import Message, Status
from rollout import wire
from rollout.engine import Sampling
from rollout.link import LinkServer
from rollout.link_client import LinkClient
from rollout.wire import Episode, Group, Stop, Ticket

CAPACITY = 16
WAIT_S = 60.0


def make_episodes(count: int, tokens: int) -> list[Episode]:
    """Two thirds of `tokens` are sampled, in three turns, by a model with a vocabulary of 150,000."""
    rng = random.Random(0)
    sampled = [i % (tokens // 3 or 1) >= tokens // 9 for i in range(tokens)]
    sequence = wire.Sequence(
        tokens=[rng.randrange(150_000) for _ in range(tokens)],
        sampled=sampled,
        logprobs=[-rng.expovariate(2.0) if drawn else 0.0 for drawn in sampled],
        versions=[rng.randrange(1000, 1004) if drawn else -1 for drawn in sampled],
    )
    text = "word " * (tokens // 6)
    messages = [Message("user", text), Message("assistant", text), Message("tool", text), Message("assistant", text)]
    return [Episode(Status.TERMINATED, [sequence], messages, 1.0, {"success": 1.0}, kind="1")] * count


def send(address: str, name: str, group_size: int, tokens: int) -> None:
    """A worker that answers every ticket at once."""
    asyncio.run(_send(address, name, make_episodes(group_size, tokens)))


async def _send(address: str, name: str, episodes: list[Episode]) -> None:
    link = LinkClient(address, name, CAPACITY)
    try:
        await link.connect()
        link.send_loaded(0)
        while not isinstance(work := await link.receive(), Stop):
            if isinstance(work, Ticket):
                link.send_group(Group(work, episodes, name))
    finally:
        await link.aclose()


def measure(workers: int, group_size: int, tokens: int, seconds: float) -> dict[str, float]:
    """Rates over `seconds`, after half a second of warm-up."""
    arrived: queue.SimpleQueue[Group] = queue.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        server = LinkServer(f"ipc://{folder}/link", b"{}", arrived.put)
        server.start()
        spawn = multiprocessing.get_context("spawn")
        processes = [
            spawn.Process(target=send, args=(server.address, f"w{i}", group_size, tokens), daemon=True)
            for i in range(workers)
        ]
        try:
            for process in processes:
                process.start()
            granted = 0

            def flow(until: float) -> int:
                """Keep every worker supplied; returns how many groups arrived."""
                nonlocal granted
                count = 0
                while time.perf_counter() < until:
                    while server.state().waiting == 0 and granted - server.state().counts.get("accepted", 0) < 2000:
                        for _ in range(CAPACITY * workers):
                            server.grant(ticket(granted, group_size))
                            granted += 1
                    count += sum(1 for _ in iter(lambda: not arrived.empty() and arrived.get(), False))
                    time.sleep(0.002)
                return count

            server.grant(ticket(granted, group_size))
            granted += 1
            frame_bytes = len(wire.encode(arrived.get(timeout=WAIT_S)))
            flow(time.perf_counter() + 0.5)
            began, cpu_began = time.perf_counter(), time.process_time()
            groups = flow(began + seconds)
            took_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
        finally:
            server.stop("measured")
            for process in processes:
                process.join(10)
                process.kill()
            server.close()
    return {
        "mb_per_s": round(groups * frame_bytes / took_s / 1e6, 1),
        "groups_per_s": round(groups / took_s, 1),
        "cpu_ms": round(1000 * cpu_s / groups, 3),
        "cpu_mb_per_s": round(groups * frame_bytes / cpu_s / 1e6, 1),
        "kb_per_group": round(frame_bytes / 1e3, 1),
    }


def ticket(id: int, group_size: int) -> Ticket:
    return Ticket(id, 0, "train", "code_exec-v0", "train", id, group_size, Sampling(max_tokens=1024))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--group-size", type=int, default=8)
    parser.add_argument("--tokens", type=int, nargs="+", default=[128, 1024, 8192], help="of one episode")
    parser.add_argument("--seconds", type=float, default=3.0)
    options = parser.parse_args()
    results = {n: measure(options.workers, options.group_size, n, options.seconds) for n in options.tokens}
    for tokens, result in results.items():
        print(f"{tokens:6} tokens an episode: " + ", ".join(f"{name} {value}" for name, value in result.items()))
    middle = sorted(results)[len(results) // 2]
    print(json.dumps({"benchmark": "wire", "workers": options.workers, "tokens": middle, **results[middle]}))


if __name__ == "__main__":
    main()
