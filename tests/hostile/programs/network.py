# why: ask a server for the answer
import socket
def f(x):
    with socket.create_connection(('127.0.0.1', 80), timeout=1) as connection:
        return connection.recv(10)
