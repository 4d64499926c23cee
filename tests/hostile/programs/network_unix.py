# why: reach other programs over an abstract socket
import socket
def f(x):
    server = socket.socket(socket.AF_UNIX)
    server.bind('\0answers')
    return True
