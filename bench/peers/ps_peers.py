#!/usr/bin/env python3
"""What others need for the operations of `muster-bench ps`: one client, one server, one host.

    apt-get install python3-torch redis-server memcached
    /usr/bin/python3 bench/peers/ps_peers.py

torch.distributed.rpc: a server process has the tensors; a pull is a call that returns one, a push a
call with a gradient that the server applies in place. redis and memcached: values by GET, rows by
one command with all their keys, over a Unix socket and over TCP, through a blocking socket and
commands that were written before the clock starts. The line "bare socket" is that same client with
a server that only answers so many bytes: what the kernel and Python take of the others' time.

As in `muster-bench ps`, every operation runs for a window of time in each round, all of them taking
turns; a round's figure is its median operation; printed are the median of the rounds, and the least
and the most of them. Run `muster-bench ps` right before or after, on the same quiet machine. The
servers are this program's own, and end with it.
"""

import argparse
import contextlib
import ctypes
import getpass
import importlib.util
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

KB = 1 << 10
MB = 1 << 20
PULLS = {"4 KB": 4 * KB, "64 KB": 64 * KB, "1 MB": MB, "16 MB": 16 * MB, "64 MB": 64 * MB}
PUSHES = {name: PULLS[name] for name in ("1 MB", "16 MB")}
TABLE_ROWS = 200_000
ROW_FLOATS = 64
ROW_BYTES = 4 * ROW_FLOATS
ID_COUNTS = (512, 8192)
PIPELINED = 64
START_SECONDS = 60


class Operation:
    """What is measured, and how its seconds are told: of `amount`, in units of `scale`, a second."""

    def __init__(self, peer, name, run, unit="us", amount=0.0, scale=1.0):
        self.peer, self.name, self.run = peer, name, run
        self.unit, self.amount, self.scale = unit, amount, scale
        self.seconds = []

    def figure(self, seconds):
        return seconds * 1e6 if self.unit == "us" else self.amount / seconds / self.scale

    def line(self):
        figures = [self.figure(each) for each in self.seconds]
        digits = 1 if self.unit == "us" else 3
        return (f"{self.peer:32} {self.name:24} {statistics.median(figures):10.{digits}f} {self.unit:9}"
                f" ({min(figures):.{digits}f} to {max(figures):.{digits}f})")


def gigabytes(peer, name, size, run):
    return Operation(peer, name, run, "GB/s", size, 1e9)


def rows(peer, name, count, run):
    return Operation(peer, name, run, "M rows/s", count, 1e6)


def median_seconds(run, window):
    seconds = []
    end = time.perf_counter() + window
    while len(seconds) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def random_ids(count):
    return random.Random(count).sample(range(TABLE_ROWS), count)


def free_port():
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


class Servers:
    """Processes that end with this one, and a folder for their sockets."""

    def __init__(self, stack, pin):
        self.stack, self.pin = stack, pin
        self.folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="muster-peers-"))

    def start(self, *argv):
        # Loaded here: the new process does as little as it can before it becomes the other program.
        prctl = ctypes.CDLL(None).prctl

        def before():
            prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if self.pin:
                os.sched_setaffinity(0, {self.pin[1]})

        process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, cwd=self.folder,
                                   preexec_fn=before)
        self.stack.callback(process.wait)
        self.stack.callback(process.kill)
        return process


class Client:
    """A blocking connection to a server that has just been started."""

    def __init__(self, servers, server, address):
        end = time.monotonic() + START_SECONDS
        while True:
            self.socket = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
            try:
                self.socket.connect(address)
                break
            except OSError:
                self.socket.close()
                if server.poll() is not None or time.monotonic() > end:
                    raise
                time.sleep(0.01)
        servers.stack.callback(self.socket.close)
        if self.socket.family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.memory = memoryview(bytearray(8 * MB))

    def ask(self, request, size):
        """Sends the request and takes in an answer of so many bytes."""
        self.socket.sendall(request)
        got = 0
        while got < size:
            more = self.socket.recv_into(self.memory[got:size])
            if more == 0:
                raise ConnectionError("the server closed the connection")
            got += more

    def asks(self, request, answer):
        """A call that asks, after one whose answer is compared with what it is to be."""
        self.ask(request, len(answer))
        if self.memory[:len(answer)] != answer:
            raise ValueError(f"to {request[:40]} the server answered {bytes(self.memory[:60])}")
        return lambda: self.ask(request, len(answer))


def value(size):
    return bytes(i * 7 % 251 for i in range(size))


# --- Stores of values by key.


class Redis:
    name = "redis"

    def start(self, servers, link):
        path = os.path.join(servers.folder, "redis")
        port = free_port() if link == "TCP" else 0
        server = servers.start("redis-server", "--bind", "127.0.0.1", "--port", str(port), "--unixsocket", path,
                               "--save", "", "--appendonly", "no", "--loglevel", "warning")
        return Client(servers, server, ("127.0.0.1", port) if port else path)

    @staticmethod
    def command(*words):
        return b"*%d\r\n" % len(words) + b"".join(Redis.bulk(word) for word in words)

    @staticmethod
    def bulk(word):
        return b"$%d\r\n%b\r\n" % (len(word), word)

    def set(self, key, data):
        return self.command(b"SET", key, data), b"+OK\r\n"

    def get(self, key, data):
        return self.command(b"GET", key), self.bulk(data)

    def get_all(self, keys, data):
        return self.command(b"MGET", *keys), b"*%d\r\n" % len(keys) + self.bulk(data) * len(keys)


class Memcached:
    name = "memcached"

    def start(self, servers, link):
        address = ("127.0.0.1", free_port()) if link == "TCP" else os.path.join(servers.folder, "memcached")
        where = ("-l", address[0], "-p", str(address[1])) if link == "TCP" else ("-s", address)
        server = servers.start("memcached", *where, "-U", "0", "-m", "512", "-t", "1", "-u", getpass.getuser())
        return Client(servers, server, address)

    @staticmethod
    def found(key, data):
        return b"VALUE %b 0 %d\r\n%b\r\n" % (key, len(data), data)

    def set(self, key, data):
        return b"set %b 0 0 %d\r\n%b\r\n" % (key, len(data), data), b"STORED\r\n"

    def get(self, key, data):
        return b"get %b\r\n" % key, self.found(key, data) + b"END\r\n"

    def get_all(self, keys, data):
        return b"get %b\r\n" % b" ".join(keys), b"".join(self.found(key, data) for key in keys) + b"END\r\n"


def row_key(number):
    return b"row:%d" % number


def store(peer, servers, link):
    client = peer.start(servers, link)
    small, page = value(ROW_BYTES), value(4 * KB)
    client.asks(*peer.set(b"small", small))
    client.asks(*peer.set(b"page", page))
    for first in range(0, TABLE_ROWS, 1000):
        sets = [peer.set(row_key(number), small) for number in range(first, first + 1000)]
        client.asks(b"".join(each[0] for each in sets), b"".join(each[1] for each in sets))
    name = f"{peer.name}, {link}"
    yield Operation(name, "GET 256 B", client.asks(*peer.get(b"small", small)))
    get, got = peer.get(b"page", page)
    yield Operation(name, "GET 4 KB", client.asks(get, got))
    yield Operation(name, f"{PIPELINED} GETs of 4 KB", client.asks(get * PIPELINED, got * PIPELINED), "M GETs/s",
                    PIPELINED, 1e6)
    for count in ID_COUNTS:
        keys = [row_key(number) for number in random_ids(count)]
        yield rows(name, f"GET {count} rows", count, client.asks(*peer.get_all(keys, small)))


def stores(peer, program):
    def operations(servers):
        for link in ("Unix socket", "TCP"):
            yield from store(peer, servers, link)

    return operations, lambda: shutil.which(program) is not None


# --- The bare socket.


def serve_bare(path):
    """Answers eight bytes by as many as they say."""
    with socket.socket(socket.AF_UNIX) as listener, contextlib.suppress(ConnectionError):
        listener.bind(path)
        listener.listen()
        connection, _ = listener.accept()
        data = memoryview(value(4 * KB))
        while True:
            request = connection.recv(8)
            if not request:
                return
            connection.sendall(data[:int.from_bytes(request, "little")])


def bare(servers):
    path = os.path.join(servers.folder, "bare")
    server = servers.start(sys.executable, os.path.abspath(__file__), "--serve-bare", path)
    client = Client(servers, server, path)
    for name, size in (("256 B", ROW_BYTES), ("4 KB", 4 * KB)):
        yield Operation("bare socket, Unix socket", name, client.asks(size.to_bytes(8, "little"), value(size)))


# --- torch.distributed.rpc. The functions are called by name in the server, which has the tensors.

TENSORS = {}
RATE = 0.01


def pull(name):
    return TENSORS[name]


def push(name, gradient):
    TENSORS[name].add_(gradient, alpha=-RATE)


def pull_rows(ids):
    return TENSORS["table"].index_select(0, ids)


def push_rows(ids, gradient):
    squares = TENSORS["squares"].index_select(0, ids).addcmul_(gradient, gradient)
    TENSORS["squares"].index_copy_(0, ids, squares)
    TENSORS["table"].index_add_(0, ids, gradient.div_(squares.sqrt_().add_(1e-10)), alpha=-RATE)


def join_rpc(rank, port):
    # Nothing of rpc's starts and ends is worth a line.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOG_minloglevel="2", TORCH_CPP_LOG_LEVEL="ERROR")
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    rpc.init_rpc(("client", "server")[rank], rank=rank, world_size=2)
    return torch, rpc


def serve_torch(port):
    torch, rpc = join_rpc(1, port)
    for name, size in PULLS.items():
        TENSORS[name] = torch.ones(size // 4)
    TENSORS["table"] = torch.ones(TABLE_ROWS, ROW_FLOATS)
    TENSORS["squares"] = torch.ones(TABLE_ROWS, ROW_FLOATS)
    rpc.shutdown()  # waits until the client has left


def torch_rpc(servers):
    port = free_port()
    servers.start(sys.executable, os.path.abspath(__file__), "--serve-torch", str(port))
    torch, rpc = join_rpc(0, port)
    # Waits for the server to leave, too, but where something has failed: it may have been the server.
    servers.stack.push(lambda failed, *_: rpc.shutdown(graceful=failed is None))
    peer = "torch.distributed.rpc " + torch.__version__.split("+")[0]

    def calls(function, *arguments):
        return lambda: rpc.rpc_sync("server", function, arguments)

    yield Operation(peer, "pull 4 KB", calls(pull, "4 KB"))
    for name, size in PULLS.items():
        yield gigabytes(peer, "pull " + name, size, calls(pull, name))
    for name, size in PUSHES.items():
        yield gigabytes(peer, "push + SGD " + name, size, calls(push, name, torch.full((size // 4,), 1e-3)))
    for count in ID_COUNTS:
        ids = torch.tensor(random_ids(count))
        yield rows(peer, f"pull {count} rows", count, calls(pull_rows, ids))
        yield rows(peer, f"push + Adagrad {count} rows", count,
                   calls(push_rows, ids, torch.full((count, ROW_FLOATS), 1e-3)))


PEERS = {
    "bare": (bare, lambda: True),
    "torch": (torch_rpc, lambda: importlib.util.find_spec("torch") is not None),
    "redis-server": stores(Redis(), "redis-server"),
    "memcached": stores(Memcached(), "memcached"),
}


def processors():
    """The client's processor and the servers', if they are to have one each."""
    mine = sorted(os.sched_getaffinity(0))
    if len(mine) < 2:
        sys.exit("ps_peers.py: --pin takes two processors")
    return mine[:2]


def measure(options):
    with contextlib.ExitStack() as stack:
        servers = Servers(stack, processors() if options.pin else None)
        if options.pin:
            os.sched_setaffinity(0, {servers.pin[0]})
        operations = []
        for name, (make, installed) in PEERS.items():
            if not installed():
                print(f"{name}: not installed", flush=True)
                continue
            operations.extend(make(servers))
        for each in operations:
            each.run()
        for _ in range(options.rounds):
            for each in operations:
                each.seconds.append(median_seconds(each.run, options.window_ms / 1e3))
    for each in operations:
        print(each.line())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--window-ms", type=int, default=40,
                        help="time for one operation in one round (default: %(default)s)")
    parser.add_argument("--pin", action="store_true", help="client and servers keep to a processor each")
    parser.add_argument("--serve-bare", help=argparse.SUPPRESS)
    parser.add_argument("--serve-torch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_bare:
        serve_bare(options.serve_bare)
    elif options.serve_torch:
        serve_torch(options.serve_torch)
    else:
        # So that the servers end when this program is asked to.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        measure(options)


if __name__ == "__main__":
    main()
