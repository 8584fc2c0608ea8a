"""What loading costs: CIFAR-100 batches against a training step, and JPEG files against the bare decoder.

    python benchmarks/loading.py [--full] [--workers 0 1 2] [--data-dir DIR] [--json PATH]

1. Batches of 128 from memory (gathered, augmented, normalised) beside a training step of ResNet-18 at 32x32
   on the same batch, measured in turns; the cost is the ratio of the medians. Without CIFAR-100 in
   --data-dir the images are random: the work is the same.
2. Many JPEG files read in random order by MappedData, beside a loop that only decodes (Pillow to array,
   with the same scaling): files of 128 pixels as they are, and photographs of 400 pixels scaled to 128.
   The files are hard links of some real or random pictures in a temporary directory: 3,000 links, or
   100,000 with --full. On a busy machine look at the share of CPU time that is decoding, not at the wall
   clock. Memory is the proportional set of this process and its workers at a tenth of the way and at the
   end.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
from pathlib import Path
from time import perf_counter, sleep

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

import manymodes as mm
from manymodes.errors import UserError
from manymodes.streams.image_sets import EncodedImages, ImageOptions, image_set
from manymodes.streams.images import Normalise, image_data
from manymodes.streams.mapped import MappedData
from manymodes.task import Data

BATCH = 128


def pictures(data_dir: str) -> tuple[NDArray[np.uint8], str]:
    """2,000 images (S, 3, 32, 32), real where the data is there."""
    try:
        task = mm.streams.split_cifar100(data_dir=data_dir, limit=2000)[0]
        return task.train.inputs.numpy(), "CIFAR-100"
    except UserError:
        return np.random.default_rng(0).integers(0, 256, (2000, 3, 32, 32), dtype=np.uint8), "random"


def batches_in_memory(images: NDArray[np.uint8], rounds: int) -> list[dict[str, object]]:
    """The cost of a batch as a share of a training step."""
    model = mm.models.resnet18(outputs=100).to(memory_format=torch.channels_last)
    optimiser = torch.optim.AdamW(model.parameters(), fused=True)
    generator = torch.Generator().manual_seed(0)
    lines = []
    for augment in (False, True):
        data = image_data(
            torch.from_numpy(images),
            torch.arange(len(images)) % 100,
            normalise="cifar100",
            augment=augment,
            training=True,
        )
        loads, steps = [], []
        for _ in range(rounds):
            index = torch.randperm(len(images), generator=generator)[:BATCH]
            start = perf_counter()
            batch = next(data.batches([index], generator))
            loads.append(perf_counter() - start)
            start = perf_counter()
            optimiser.zero_grad()
            inputs = batch.inputs.contiguous(memory_format=torch.channels_last)
            torch.nn.functional.cross_entropy(model(inputs), batch.targets).backward()
            optimiser.step()
            steps.append(perf_counter() - start)
        load, step = statistics.median(loads[2:]), statistics.median(steps[2:])
        lines.append(
            {"augment": augment, "batch_ms": 1e3 * load, "step_ms": 1e3 * step, "share": load / step}
        )
    return lines


def write_files(folder: Path, images: NDArray[np.uint8], size: int, count: int, originals: int) -> list[Path]:
    """`count` names of `originals` different JPEG files."""
    first = []
    for number, image in enumerate(images[:originals]):
        file = folder / f"original-{number}.jpg"
        Image.fromarray(image.transpose(1, 2, 0)).resize((size, size)).save(file, quality=90)
        first.append(file)
    links = []
    for number in range(count):
        link = folder / f"{number // 1000}" / f"{number}.jpg"
        link.parent.mkdir(exist_ok=True)
        os.link(first[number % originals], link)
        links.append(link)
    return links


def cpu_seconds() -> float:
    """CPU time of this process and of all its workers, once these have ended."""
    while multiprocessing.active_children():
        sleep(0.01)
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def decode_only(files: list[Path], size: int | None) -> tuple[float, float]:
    """Pillow alone: images a second, and CPU seconds an image."""
    cpu = cpu_seconds()
    start = perf_counter()
    for file in files:
        with Image.open(file) as image:
            if size is None:
                np.array(image.convert("RGB"))
                continue
            image.draft("RGB", (size, size))
            np.array(image.convert("RGB").resize((size, size), Image.Resampling.BILINEAR))
    return len(files) / (perf_counter() - start), (cpu_seconds() - cpu) / len(files)


def read_all(data: Data, count: int) -> tuple[float, float, float, float]:
    """Images and CPU seconds as above, and MB at a tenth and at the end of a pass in random order."""
    order = list(torch.randperm(count, generator=torch.Generator().manual_seed(0)).split(BATCH))
    early = late = 0.0
    cpu = cpu_seconds()
    start = perf_counter()
    for number, _ in enumerate(data.batches(order)):
        if number == len(order) // 10:
            early = memory()
        if number == len(order) - 2:
            late = memory()
    rate = count / (perf_counter() - start)
    return rate, (cpu_seconds() - cpu) / count, early, late


def memory() -> float:
    """MB of this process and its workers, shared pages counted once."""
    total = 0
    for pid in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            total += int(line.split()[1]) if line.startswith("Pss:") else 0
    return total / 1024


def files_from_disk(
    images: NDArray[np.uint8], pixels: int, size: int | None, count: int, all_workers: list[int]
) -> list[dict[str, object]]:
    """Reading by MappedData against decoding alone."""
    lines: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        files = write_files(Path(folder), images, pixels, count, min(2000, count))
        sample = files[: min(1000, count)]
        decode_only(sample, size)  # the files are in the page cache from here on
        start = perf_counter()
        image_set(files, ImageOptions(size=size, memory_gb=0, workers=0))
        checking = count / (perf_counter() - start)
        for workers in all_workers:
            before = decode_only(sample, size)
            targets = torch.zeros(count, dtype=torch.long)
            sources = EncodedImages(files, range(count), targets, size, 3)
            data = MappedData(
                sources, transform=Normalise("imagenet"), targets=targets, workers=workers, varies=False
            )
            rate, cpu, early, late = read_all(data, count)
            after = decode_only(sample, size)
            decoder, decoder_cpu = ((one + other) / 2 for one, other in zip(before, after, strict=True))
            lines.append(
                {
                    "pixels": pixels,
                    "scaled_to": size or pixels,
                    "files": count,
                    "workers": workers,
                    "images_per_s": rate,
                    "decoder_per_s": decoder,
                    "ratio": rate / decoder,
                    "decoding_share_of_cpu": decoder_cpu / cpu,
                    "mb_at_a_tenth": early,
                    "mb_at_the_end": late,
                    "headers_checked_per_s": checking,
                }
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="100,000 files and more rounds")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--data-dir", default="../shared/data")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    images, source = pictures(arguments.data_dir)
    print(f"batches of {BATCH} from memory ({source}), beside a step of ResNet-18 at 32x32")
    print("augment  batch ms  step ms  share")
    in_memory = batches_in_memory(images, 60 if arguments.full else 20)
    for line in in_memory:
        print("{augment!s:<7}  {batch_ms:8.2f}  {step_ms:7.1f}  {share:.2%}".format(**line), flush=True)
    print("\nJPEG files read in random order, beside Pillow alone in one process")
    print(
        "pixels  scaled to   files  workers  images/s  decoder/s  ratio  decoding/CPU  MB at 1/10  at the end"
    )
    count = 100_000 if arguments.full else 3_000
    from_disk = files_from_disk(images, 128, None, count, arguments.workers)
    from_disk += files_from_disk(images, 400, 128, count, arguments.workers)
    for line in from_disk:
        print(
            "{pixels:>6}  {scaled_to:>9}  {files:>6}  {workers:>7}  {images_per_s:8.0f}  "
            "{decoder_per_s:9.0f}  {ratio:5.2f}  {decoding_share_of_cpu:12.0%}  {mb_at_a_tenth:10.0f}  "
            "{mb_at_the_end:10.0f}".format(**line),
            flush=True,
        )
    print("headers checked beforehand: {headers_checked_per_s:.0f} files/s".format(**from_disk[0]))
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"memory": in_memory, "disk": from_disk}, indent=2) + "\n")


if __name__ == "__main__":
    main()
