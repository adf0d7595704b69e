#!/usr/bin/python3
"""A stranger that tries every TCP port of some processes, round after round, until the file STOP
exists. Then it prints a report as JSON.

stranger.py MESSAGES STOP NUMBERS PID...

MESSAGES: a JSON file, {"frames": [[part, ...], ...], "join": bytes}, all in hexadecimal: messages of the
protocol that a member of the job would send.
NUMBERS: how many of the first connections' numbers it tries to take.

It tries each port without a key, with a wrong key, with a forged proof of the token, with passwords,
with older versions of ZMTP, with garbage, with messages that do not end, and with silence.
"""
import contextlib
import ctypes
import json
import os
import random
import re
import resource
import socket
import sys
import time

import zmq

from squatter import ports_of

SILENT = 1000
PROOF = b"\x07TNDMPF1"  # begins the messages of a proof (transport/proof.h)
# Frames by which an endpoint finds out whether an ignored peer is still there. They say nothing: the
# fields of their header are zero. The last one may not have arrived completely.
PINGS = re.compile(rb"TNDM\x01\x20\x01(\0{65}.{8}|\0{0,65}\Z|\0{65}.{0,7}\Z)", re.DOTALL)
GREETING = b"\xff" + bytes(7) + b"\x01\x7f"  # begins ZMTP


class Stranger:
    """Its connections, and what came back over them."""

    def __init__(self, messages):
        self.frames = [[bytes.fromhex(part) for part in frame] for frame in messages["frames"]]
        self.join = bytes.fromhex(messages["join"])
        self.random = random.Random(7)
        self.context = zmq.Context()
        self.silent = []
        self.monitors = []  # of all its sockets that speak ZeroMQ
        self.heard = {}  # over raw connections to ports that speak ZMTP
        self.report = {"rounds": 0, "ports": 0, "challenges": 0, "pings": 0, "refusals": 0,
                       "silent": 0, "let_in": 0, "replies": []}

    def dealer(self, port, password=None, curve=False, routing_id=None):
        """Connects a socket that speaks ZeroMQ."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.linger, dealer.reconnect_ivl, dealer.rcvtimeo, dealer.sndtimeo = 0, -1, 0, 0
        if password is not None:
            dealer.plain_username, dealer.plain_password = b"tandem", password
        if curve:
            dealer.curve_serverkey, _ = zmq.curve_keypair()
            dealer.curve_publickey, dealer.curve_secretkey = zmq.curve_keypair()
        if routing_id is not None:
            dealer.routing_id = routing_id
        self.monitors.append(dealer.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED))
        dealer.connect(f"tcp://127.0.0.1:{port}")
        return dealer

    def dealers(self, port):
        """Sockets that speak ZeroMQ, with what each sends first."""
        for key in ("none", "curve", "plain", "proof"):
            dealer = self.dealer(port, password=b"tandem" if key == "plain" else None, curve=key == "curve")
            first = [[PROOF + self.random.randbytes(32)]] if key == "proof" else self.frames
            self.send(dealer, first)
            yield dealer

    @staticmethod
    def send(dealer, frames):
        for parts in frames:
            with contextlib.suppress(zmq.Again):  # the other end has closed the connection
                dealer.send_multipart(parts)

    def raw(self, port):
        """TCP connections, each with some bytes."""
        older = bytes([1, 0, 4, 0]) + b"abc", GREETING + bytes([1, 5, 0, 0, 0, 3]) + b"abc"
        length = len(self.join).to_bytes(4, "little")
        for sent in (self.random.randbytes(4096), b"GET /status.json HTTP/1.1\r\n\r\n", *older,
                     length + self.join, b"\x28\0\0\0" + PROOF + self.random.randbytes(32)):
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=1)
                connection.setblocking(False)
                connection.send(sent)
                yield connection
            except OSError:
                pass  # the listener has closed

    def hear(self, port, message, answer):
        """Counts one message that came from a port."""
        if message.startswith(PROOF):
            self.report["challenges"] += 1
            answer()
        elif not PINGS.sub(b"", message):
            self.report["pings"] += 1
        elif b"has no token" in message or b"has another token" in message:
            self.report["refusals"] += 1
        else:
            self.report["replies"].append([port, message[:200].hex()])

    def hear_dealer(self, port, dealer):
        def answer():
            self.send(dealer, [[PROOF + self.random.randbytes(32)]] + self.frames)
        while True:
            try:
                message = dealer.recv_multipart()
            except zmq.Again:
                return
            self.hear(port, b"".join(message), answer)

    def hear_raw(self, port, connection):
        def answer():
            with contextlib.suppress(OSError):  # closed: refused, or the job has ended
                connection.send(b"\x28\0\0\0" + PROOF + self.random.randbytes(32))
                connection.send(len(self.join).to_bytes(4, "little") + self.join)
        try:
            message = connection.recv(65536)
        except OSError:
            return
        # ZMTP greets everybody with its version and the name of its mechanism.
        speaks_zmtp = message.startswith(b"\xff") or message.startswith(b"\x01\x00")
        if speaks_zmtp or connection in self.heard:
            self.heard[connection] = self.heard.get(connection, b"") + message
        elif message:
            self.hear(port, message[4:] if message[4:].startswith(PROOF) else message, answer)

    def round(self, ports, patience):
        self.report["ports"] = max(self.report["ports"], len(ports))
        dealers = [(port, dealer) for port in ports for dealer in self.dealers(port)]
        raw = [(port, connection) for port in ports for connection in self.raw(port)]
        until = time.monotonic() + patience
        while time.monotonic() < until:
            for port, dealer in dealers:
                self.hear_dealer(port, dealer)
            for port, connection in raw:
                self.hear_raw(port, connection)
            time.sleep(.02)
        for port, connection in raw:  # every frame of ours begins with TNDM
            if b"TNDM" in PINGS.sub(b"", self.heard.get(connection, b"")):
                self.report["replies"].append([port, self.heard[connection][:200].hex()])
        self.heard.clear()
        self.look_whether_let_in()
        for _, dealer in dealers:
            self.monitors.remove(dealer.get_monitor_socket())
            dealer.disable_monitor()
        for _, socket_ in dealers + raw:
            socket_.close()
        self.report["rounds"] += 1

    def take_numbers(self, ports, count):
        """Stays connected under the names that libzmq gives to the first connections of a socket:
        numbers that begin at two random numbers of a generator without a seed."""
        libc = ctypes.CDLL(None)
        libc.srand(1)
        drawn = [libc.rand() for _ in range(5)]
        starts = [low | (high & 1) << 31 for low, high in zip(drawn, drawn[1:])]
        names = [b"\0" + ((start + i) % 2**32).to_bytes(4, "big") for start in starts for i in range(count)]
        for port in ports:
            for i, name in enumerate(names):
                password = b"tandem" if i % 2 else None
                self.silent.append(self.dealer(port, password=password, routing_id=name))

    def send_without_end(self, ports):
        """Sends a message whose last part never comes."""
        for port in ports:
            for password in (None, b"tandem"):
                dealer = self.dealer(port, password=password)
                self.silent.append(dealer)
                with contextlib.suppress(zmq.Again):
                    for _ in range(32):
                        dealer.send(bytes(2**20), zmq.SNDMORE)

    def look_whether_let_in(self):
        for monitor in self.monitors:
            while monitor.poll(0):
                monitor.recv_multipart()
                self.report["let_in"] += 1

    def keep_silent(self, ports):
        for i in range(SILENT):
            try:
                self.silent.append(socket.create_connection(("127.0.0.1", ports[i % len(ports)])))
                self.report["silent"] += 1
            except OSError:
                pass


def main():
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with open(sys.argv[1], encoding="ascii") as file:
        stranger = Stranger(json.load(file))
    stop, numbers, pids = sys.argv[2], int(sys.argv[3]), [int(pid) for pid in sys.argv[4:]]
    stranger.round(ports_of(pids), 1)
    stranger.send_without_end(ports_of(pids))
    stranger.take_numbers(ports_of(pids), numbers)
    stranger.keep_silent(ports_of(pids))
    print("tried every port", flush=True)
    while not os.path.exists(stop):
        stranger.round(ports_of(pids), .5)
    stranger.look_whether_let_in()
    print(json.dumps(stranger.report), flush=True)


main()
