"""The streams that can be asked for by name; reading this list imports nothing heavy."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One stream: where its function lives, and what a person should know before asking for it."""

    where: str
    about: str
    size: str
    licence: str
    download: str

    @property
    def function(self) -> str:
        """The name of the function in `manymodes.streams`."""
        return self.where.rpartition(":")[2]


_HERE = "manymodes.streams"

STREAMS: dict[str, Entry] = {
    "digits": Entry(
        f"{_HERE}.digits8x8:digits",
        "real handwritten digits 8x8, 5 tasks x 2 digits (or 5 renditions of all ten)",
        "1,797 images",
        "CC BY 4.0",
        "nothing, it comes with scikit-learn",
    ),
    "split-cifar100": Entry(
        f"{_HERE}.cifar100:split_cifar100",
        "CIFAR-100, 10 tasks x 10 classes (or 5 tasks x 20 coarse classes)",
        "60,000 images 32x32",
        "research data without a formal licence",
        "cifar-100-python.tar.gz, 169 MB, from cs.toronto.edu",
    ),
    "split-tiny-imagenet": Entry(
        f"{_HERE}.tiny_imagenet:split_tiny_imagenet",
        "Tiny-ImageNet, 10 tasks x 20 classes",
        "110,000 labelled images 64x64",
        "research data without a formal licence (ImageNet's terms)",
        "tiny-imagenet-200.zip, 248 MB, from cs231n.stanford.edu",
    ),
    "domainnet": Entry(
        f"{_HERE}.domain_net:domainnet",
        "DomainNet, 6 domains x 345 classes",
        "about 587,000 images of any size",
        "research use only (fair use of images from the web)",
        "6 zips and 12 lists, about 18 GB, from csr.bu.edu",
    ),
    "pacs": Entry(
        f"{_HERE}.pacs_domains:pacs",
        "PACS, 4 visual domains x 7 classes",
        "9,991 images 227x227 (32x32 in the npz layout)",
        "research data without a formal licence",
        "nothing, there is no official direct link: give data_dir",
    ),
    "folder": Entry(
        f"{_HERE}.own_folder:folder",
        "your own images: a directory per task, or a CSV manifest path,label,task",
        "yours",
        "yours",
        "nothing",
    ),
    "arrays": Entry(
        f"{_HERE}.own_arrays:arrays",
        "your own arrays: an npz file with x, y, task; images, tables, time series",
        "yours",
        "yours",
        "nothing",
    ),
    "huggingface": Entry(
        f"{_HERE}.hub:huggingface",
        "an image or table data set of the Hugging Face hub, as huggingface:NAME",
        "the set's own",
        "the set's own",
        "the set, by the `datasets` package",
    ),
}
