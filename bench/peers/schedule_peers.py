#!/usr/bin/env python3
"""What others need to have nothing done: empty functions on two worker processes of this host.

    python3 -m venv build/peers && build/peers/bin/pip install tensorflow-cpu ray 'dask[distributed]' torch
    build/peers/bin/python bench/peers/schedule_peers.py

Each peer that can be imported, one after another, prints how many empty calls a second go out and
come back when all are given out before the first wait, and how long one call and its result take.
`muster-bench schedule` prints the same of Muster; run it right before or after, on the same quiet
machine.
"""

import argparse
import importlib.util
import json
import logging
import os
import socket
import statistics
import subprocess
import sys
import time


def per_second(count, run):
    begin = time.perf_counter()
    run(count)
    return count / (time.perf_counter() - begin)


def report(name, rounds, count, many, one):
    many(min(count, 100))  # connections, imports, first calls
    for _ in range(20):
        one()
    rates = [per_second(count, many) for _ in range(rounds)]
    latencies = []
    for _ in range(300):
        begin = time.perf_counter()
        one()
        latencies.append(time.perf_counter() - begin)
    print(f"{name:24} {statistics.median(rates) / 1e3:8.2f} k calls/s "
          f"({min(rates) / 1e3:.2f} to {max(rates) / 1e3:.2f}), "
          f"one: {statistics.median(latencies) * 1e6:8.0f} us", flush=True)


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def tensorflow(options):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    ports = free_ports(3)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports[:2]], "ps": [f"127.0.0.1:{ports[2]}"]}
    serve = ("import sys, json, tensorflow as tf; "
             "tf.distribute.Server(tf.train.ClusterSpec(json.loads(sys.argv[1])), job_name=sys.argv[2], "
             "task_index=int(sys.argv[3]), protocol='grpc').join()")
    servers = [
        subprocess.Popen([sys.executable, "-c", serve, json.dumps(cluster), job, str(index)],
                         stderr=subprocess.DEVNULL)
        for job, index in (("worker", 0), ("worker", 1), ("ps", 0))
    ]
    try:
        import tensorflow as tf

        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(cluster), rpc_layer="grpc")
        strategy = tf.distribute.ParameterServerStrategy(resolver)
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)

        @tf.function
        def nothing():
            return tf.constant(0)

        def many(count):
            for _ in range(count):
                coordinator.schedule(nothing)
            coordinator.join()

        report("TensorFlow " + tf.__version__, options.rounds, options.calls, many,
               lambda: coordinator.schedule(nothing).fetch())
    finally:
        for server in servers:
            server.kill()
            server.wait()


def ray(options):
    import ray as peer

    peer.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)

    @peer.remote
    def nothing():
        return None

    @peer.remote
    class Worker:
        def nothing(self):
            return None

    name = "Ray " + peer.__version__
    report(name + " tasks", options.rounds, options.calls,
           lambda count: peer.get([nothing.remote() for _ in range(count)]),
           lambda: peer.get(nothing.remote()))
    workers = [Worker.remote() for _ in range(2)]
    report(name + " actors", options.rounds, options.calls,
           lambda count: peer.get([workers[i % 2].nothing.remote() for i in range(count)]),
           lambda: peer.get(workers[0].nothing.remote()))
    peer.shutdown()


def dask(options):
    import distributed

    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        with distributed.Client(cluster) as client:

            def nothing(_):
                return None

            def many(count):
                client.gather(client.map(nothing, range(count), pure=False))

            report("Dask " + distributed.__version__, options.rounds, options.calls, many,
                   lambda: client.submit(nothing, 0, pure=False).result())


def nothing_by_rpc():
    return None


def torch_peer(rank, port, options):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    import torch
    from torch.distributed import rpc

    torch.set_num_threads(1)
    rpc.init_rpc(f"peer{rank}", rank=rank, world_size=3)
    if rank == 0:

        def many(count):
            for future in [rpc.rpc_async(f"peer{1 + i % 2}", nothing_by_rpc) for i in range(count)]:
                future.wait()

        report("torch.distributed.rpc " + torch.__version__.split("+")[0], options.rounds, options.calls, many,
               lambda: rpc.rpc_sync("peer1", nothing_by_rpc))
    rpc.shutdown()


def torch(options):
    import multiprocessing

    port = free_ports(1)[0]
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=torch_peer, args=(rank, port, options)) for rank in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--calls", type=int, default=5000, help="in a round (default: %(default)s)")
    options = parser.parse_args()
    logging.disable(logging.INFO)
    for module, run in (("tensorflow", tensorflow), ("ray", ray), ("distributed", dask), ("torch", torch)):
        if importlib.util.find_spec(module) is None:
            print(f"{module}: not installed")
            continue
        run(options)


if __name__ == "__main__":
    main()
