#!/usr/bin/python3
"""A program of another user that takes ports of a job.

squatter.py listen PORT...       Listens at each port as soon as it is free, and takes part in the
                                 handshake of ZeroMQ (ZMTP 3, PLAIN). Prints "heard PASSWORD" for
                                 each password that a client shows.
squatter.py forward PORT TO      Passes the bytes of each connection to PORT on to the port TO, and
                                 back. Prints "connection N" for each.
squatter.py ports PID...         Prints the ports where these processes listen.
squatter.py try PASSWORD PID...  Shows the password at all ports where these processes listen. Prints
                                 how many ports there are and how many let it in, as JSON.

The program ends by itself after two minutes.
"""
import contextlib
import json
import os
import signal
import socket
import sys
import threading
import time

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"PLAIN".ljust(20, b"\0")
LONGEST_LIFE_SECONDS = 120


def read(connection, size):
    data = b""
    while len(data) < size:
        some = connection.recv(size - len(data))
        if not some:
            raise OSError("closed")
        data += some
    return data


def read_command(connection):
    """The body of a short command."""
    flags, size = read(connection, 2)
    body = read(connection, size)
    return body if flags == 4 else b""


def send_command(connection, body):
    connection.sendall(bytes([4, len(body)]) + body)


def say(*words):
    print(*words, flush=True)


def listener(port):
    """A socket that listens at the port, once it is free."""
    while True:
        at = socket.socket()
        at.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            at.bind(("127.0.0.1", port))
            at.listen(64)
            return at
        except OSError:
            at.close()
            time.sleep(.001)


def hear(connection):
    with contextlib.suppress(OSError), connection:
        connection.sendall(GREETING + b"\1" + bytes(31))
        read(connection, 64)
        body = read_command(connection)
        if not body.startswith(b"\x05HELLO"):
            return
        name = body[6]
        password = body[8 + name:]
        say("heard", password.decode("ascii", "replace"))
        send_command(connection, b"\x07WELCOME")
        read_command(connection)  # INITIATE
        send_command(connection, b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER")
        while connection.recv(65536):
            pass


def accept_all(at, serve):
    count = 0
    while True:
        connection, _ = at.accept()
        count += 1
        threading.Thread(target=serve, args=(connection, count), daemon=True).start()


def listen(ports):
    def squat(port):
        at = listener(port)
        say("listens at", port)
        accept_all(at, lambda connection, _: hear(connection))
    for port in ports:
        threading.Thread(target=squat, args=(port,), daemon=True).start()
    say("waits")
    signal.pause()


def forward(port, to):
    def copy(source, target):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(connection, count):
        with socket.create_connection(("127.0.0.1", to)) as other:
            say("connection", count)
            threading.Thread(target=copy, args=(other, connection), daemon=True).start()
            copy(connection, other)
    at = listener(port)
    say("listens at", port)
    accept_all(at, serve)


def ports_of(pids):
    """The ports at which these processes listen."""
    listening, found = {}, set()
    for pid in pids:
        with contextlib.suppress(OSError):  # the process has ended
            with open(f"/proc/{pid}/net/tcp", encoding="ascii") as file:
                for line in list(file)[1:]:
                    word = line.split()
                    if word[3] == "0A":
                        listening[f"socket:[{word[9]}]"] = int(word[1].split(":")[1], 16)
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    at = os.readlink(f"/proc/{pid}/fd/{fd}")
                    if at in listening:
                        found.add(listening[at])
    return sorted(found)


def lets_in(port, password):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(GREETING + bytes(32))
            if read(connection, 64)[12:17] != b"PLAIN":
                return False
            send_command(connection, b"\x05HELLO\x06tandem" + bytes([len(password)]) + password)
            return read_command(connection) == b"\x07WELCOME"
    except OSError:
        return False


def main():
    signal.alarm(LONGEST_LIFE_SECONDS)
    what, words = sys.argv[1], sys.argv[2:]
    if what == "listen":
        listen([int(word) for word in words])
    elif what == "forward":
        forward(int(words[0]), int(words[1]))
    elif what == "ports":
        say(*ports_of(words))
    else:
        ports = ports_of(words[1:])
        let_in = sum(lets_in(port, words[0].encode()) for port in ports)
        say(json.dumps({"ports": len(ports), "let_in": let_in}))


if __name__ == "__main__":
    main()
