"""CURVE keys: what lets a worker on another host talk to the trainer, and nobody else.

ipc sockets and the loopback interface need none. One run has two key pairs, the trainer's and its workers'; workers
are given their pair and the trainer's public half in a file that only its owner may read.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import zmq
import zmq.auth.thread


class Keys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Z85 texts of 40 characters. `trainer_secret` is empty in the file that workers are given."""

    trainer_public: str
    worker_public: str
    worker_secret: str
    trainer_secret: str = ""

    @classmethod
    def generate(cls) -> Keys:
        trainer_public, trainer_secret = (half.decode() for half in zmq.curve_keypair())
        worker_public, worker_secret = (half.decode() for half in zmq.curve_keypair())
        return cls(trainer_public, worker_public, worker_secret, trainer_secret)

    @classmethod
    def read(cls, path: str | Path) -> Keys:
        """Raises `OSError`, or `ValueError` for a file that does not hold keys."""
        try:
            return msgspec.json.decode(Path(path).read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise ValueError(f"{path} does not hold a worker's keys: {error}") from error

    def write_for_workers(self, path: str | Path) -> None:
        """Write what a worker needs, readable by this user only."""
        body = msgspec.json.encode(msgspec.structs.replace(self, trainer_secret=""))
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(body)

    def guard(self, context: zmq.Context) -> zmq.auth.thread.ThreadAuthenticator:
        """Let only this run's workers into the secured sockets of `context`, until the returned thread is stopped."""
        authenticator = zmq.auth.thread.ThreadAuthenticator(context)
        authenticator.start()
        authenticator.configure_curve_callback("*", credentials_provider=_OnlyThisKey(self.worker_public))
        return authenticator

    def secure_trainer(self, router: zmq.Socket) -> None:
        """Call before bind."""
        router.curve_server = True
        router.curve_secretkey = self.trainer_secret.encode()
        router.curve_publickey = self.trainer_public.encode()

    def secure_worker(self, dealer: zmq.Socket) -> None:
        """Call before connect."""
        dealer.curve_serverkey = self.trainer_public.encode()
        dealer.curve_publickey = self.worker_public.encode()
        dealer.curve_secretkey = self.worker_secret.encode()


class _OnlyThisKey:
    """What pyzmq's authenticator asks: may the owner of this public key (Z85) come in?"""

    def __init__(self, z85: str) -> None:
        self._key = z85.encode()

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self._key


def check_address(address: str, keys: Keys | None) -> None:
    """Raise `ValueError` for an address that is not ipc or tcp, or is open to other hosts without keys."""
    url = urlsplit(address)
    if url.scheme == "ipc":
        return
    if url.scheme != "tcp":
        raise ValueError(f"the link's address must start with ipc:// or tcp://, not {address!r}")
    if keys is None and not _is_loopback(url.hostname or ""):
        raise ValueError(f"{address} can be reached from other hosts: it needs keys (or use ipc:// or tcp://127.0.0.1)")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
