"""Fashion-MNIST by PyTorch's DistributedDataParallel, launched on the workers of a Muster cluster:

    muster submit --workers 2 --restart-policy on-failure --follow -- \
        python3 examples/launch/ddp.py --state /shared/ddp.pt

Nothing here knows of Muster: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are PyTorch's own words.
A run that begins anew, because a process or a worker was lost, goes on from the file in --state.
"""

import argparse
import gzip
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

DATA = "/usr/share/datasets/fashion-mnist"


def read_idx(path):
    """One file of MNIST's format as a uint8 tensor."""
    with gzip.open(path, "rb") as file:
        data = file.read()
    dimensions = data[3]
    shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
    return torch.frombuffer(bytearray(data[4 + 4 * dimensions :]), dtype=torch.uint8).view(shape)


def dataset(folder, part, limit):
    images = read_idx(f"{folder}/{part}-images-idx3-ubyte.gz")[:limit].float() / 255
    labels = read_idx(f"{folder}/{part}-labels-idx1-ubyte.gz")[:limit].long()
    return TensorDataset(images, labels)


def save(path, model, optimizer, epoch):
    """Whole or not at all: a reader never finds half a file."""
    state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, path + ".tmp")
    os.replace(path + ".tmp", path)


def accuracy(model, data):
    images, labels = data.tensors
    with torch.no_grad():
        return (model.module(images).argmax(1) == labels).float().mean().item()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default=DATA)
    parser.add_argument("--state", required=True, help="a file that every worker can reach")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--examples", type=int, default=60000)
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()

    stop = []
    signal.signal(signal.SIGTERM, lambda number, frame: stop.append(number))
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    first = 0
    if os.path.exists(options.state):
        state = torch.load(options.state)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        print(f"rank {rank} goes on after epoch {first}")

    training = dataset(options.data, "train", options.examples)
    sampler = DistributedSampler(training, shuffle=True, seed=1)
    loader = DataLoader(training, batch_size=options.batch, sampler=sampler)
    for epoch in range(first, options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
        if rank == 0:
            save(options.state, model, optimizer, epoch + 1)
        # All agree: one that was asked to end takes the others along, at the end of an epoch.
        asked = torch.tensor([len(stop)])
        dist.all_reduce(asked)
        print(f"rank {rank} epoch {epoch + 1} loss {loss.item():.3f}")
        if asked.item() > 0:
            print(f"rank {rank} was asked to end")
            sys.exit(143)
    if rank == 0:
        held_out = dataset(options.data, "t10k", 10000)
        print(f"accuracy {accuracy(model, held_out):.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
