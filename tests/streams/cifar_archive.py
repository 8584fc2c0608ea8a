"""Small CIFAR-100 files in the true formats: pickles as Python 2 wrote them, and parquet."""

import hashlib
import io
import json
import pickle
import struct
import tarfile

import numpy as np


class _AsPython2(pickle._Pickler):
    """Every string, of text or bytes, as the one string type that Python 2 had."""

    dispatch = dict(pickle._Pickler.dispatch)

    def save_string(self, value):
        content = value.encode("latin1") if isinstance(value, str) else value
        self.write(pickle.BINSTRING + struct.pack("<I", len(content)) + content)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def python2_pickle(value):
    out = io.BytesIO()
    _AsPython2(out, protocol=2).dump(value)
    return out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def small_set(per_class=3, seed=0):
    """Random images of 20 fine classes in 4 coarse ones: {part: (images HWC, fine, coarse)}."""
    generator = np.random.default_rng(seed)
    parts = {}
    for part, count in (("train", 20 * per_class), ("test", 20)):
        fine = np.tile(np.arange(20), count // 20)
        parts[part] = (generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8), fine, fine % 4)
    return parts


FINE = [f"fine_{i:02d}" for i in range(20)]
COARSE = [f"coarse_{i}" for i in range(4)]


def pickles(parts):
    """The three official files."""
    files = {
        name: python2_pickle(
            {
                "filenames": [f"{name}_{i}.png" for i in range(len(fine))],
                "batch_label": f"{name} batch",
                "fine_labels": fine.tolist(),
                "coarse_labels": coarse.tolist(),
                "data": images.transpose(0, 3, 1, 2).reshape(len(images), -1),
            }
        )
        for name, (images, fine, coarse) in parts.items()
    }
    return files | {"meta": python2_pickle({"fine_label_names": FINE, "coarse_label_names": COARSE})}


def archive(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(f"cifar-100-python/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def checksums(files, packed):
    """What MD5 holds for the official files, for these."""
    contents = files | {"cifar-100-python.tar.gz": packed}
    return {name: hashlib.md5(content).hexdigest() for name, content in contents.items()}


def write_parquet(folder, parts, reverse=True):
    """The Hugging Face layout, rows in another order than the archive's."""
    import pyarrow as pa
    import pyarrow.parquet as parquet
    from PIL import Image

    def png(image):
        out = io.BytesIO()
        Image.fromarray(image).save(out, "PNG")
        return out.getvalue()

    labels = {"fine_label": {"names": FINE}, "coarse_label": {"names": COARSE}}
    metadata = {"huggingface": json.dumps({"info": {"features": labels}})}
    for part, (images, fine, coarse) in parts.items():
        order = np.arange(len(fine))[:: -1 if reverse else 1]
        table = pa.table(
            {
                "img": [{"bytes": png(images[i]), "path": None} for i in order],
                "fine_label": fine[order],
                "coarse_label": coarse[order],
            }
        )
        parquet.write_table(
            table.replace_schema_metadata(metadata), folder / f"{part}-00000-of-00001.parquet"
        )
