"""A person's own images, written to disk from real ones: layouts, labels, mistakes."""

import shutil

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

import manymodes as mm
import manymodes.streams as streams
from manymodes.cli import main
from manymodes.errors import UserError
from manymodes.streams.mapped import MappedData
from manymodes.task import TensorData

DIGITS = load_digits()


def picture(label, number, size=8):
    """The number-th real image of a digit."""
    image = DIGITS.images[np.flatnonzero(DIGITS.target == label)[number]] * 15.9
    return Image.fromarray(image.astype(np.uint8)).resize((size, size), Image.Resampling.NEAREST)


def write(root, tree, count=10, size=8):
    """tree: {task: [digits]}; written as root/task/class/number.png."""
    for task, labels in tree.items():
        for label in labels:
            folder = root / task / f"digit {label}"
            folder.mkdir(parents=True)
            for number in range(count):
                picture(label, number, size).save(folder / f"{number}.png")
    return root


SAME = {"site 1": [0, 1, 2], "site 2": [0, 1, 2]}
DISJOINT = {"t1": [0, 1], "t2": [2, 3], "t10": [4, 5]}
GROWING = {"a": [0, 1], "b": [1, 2]}


@pytest.mark.parametrize(
    ("tree", "scenario"),
    [(SAME, "instance"), (DISJOINT, "task"), (GROWING, "class"), ({"x": [1, 2]}, "instance")],
)
def test_scenario_is_inferred(tree, scenario, tmp_path):
    stream = streams.folder(write(tmp_path, tree))
    assert stream.scenario == scenario
    assert [task.name for task in stream] == list(tree)
    for task, labels in zip(stream, tree.values(), strict=True):
        names = {stream.class_names[t] for t in task.train.targets.tolist()}
        assert names == {f"digit {label}" for label in labels}
        assert [len(part) for part in (task.train, task.val, task.test)] == [
            7 * len(labels),
            len(labels),
            2 * len(labels),
        ]


def test_images_and_labels_are_the_ones_on_disk(tmp_path):
    stream = streams.folder(write(tmp_path, DISJOINT), channels=1)
    assert stream.input_shape == (1, 8, 8)
    for task in stream:
        assert isinstance(task.train, TensorData)
        for raw, target in zip(task.train.inputs, task.train.targets.tolist(), strict=True):
            label = int(stream.class_names[target].split()[1])
            assert any(np.array_equal(raw[0], np.asarray(picture(label, n))) for n in range(10))


def test_one_directory_of_classes_is_one_task(tmp_path):
    write(tmp_path, {"only": [3, 4]})
    stream = streams.folder(tmp_path / "only")
    assert len(stream) == 1
    assert stream.class_names == ("digit 3", "digit 4")


def test_train_and_test_directories(tmp_path):
    for part, count in (("train", 6), ("Test", 3)):
        write(tmp_path / part, {"t1": [0, 1], "t2": [2, 3]}, count)
    stream = streams.folder(tmp_path)
    assert [(len(task.train), len(task.val), len(task.test)) for task in stream] == [(10, 2, 6)] * 2
    write(tmp_path / "plain" / "train", {"": [5, 6]})
    assert len(streams.folder(tmp_path / "plain")) == 1


def manifest(tmp_path, rows, header="path,label,task", folder="images"):
    write(tmp_path / folder, {"": range(4)})
    (tmp_path / "list.csv").write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return tmp_path / "list.csv"


def rows_for(tasks, folder="images"):
    return [
        f"{folder}/digit {d}/{n}.png,Größe {d},{task}" for task, ds in tasks for d in ds for n in range(10)
    ]


def test_manifest(tmp_path):
    stream = streams.folder(manifest(tmp_path, rows_for([("winter", [0, 1]), ("autumn", [2, 3])])))
    assert [task.name for task in stream] == ["winter", "autumn"]  # as they appear
    assert stream.class_names == ("Größe 0", "Größe 1", "Größe 2", "Größe 3")
    assert stream.scenario == "task"


def test_manifest_with_parts(tmp_path):
    rows = [f"images/digit {d}/{n}.png,{d},{'test' if n < 4 else 'train'}" for d in (0, 1) for n in range(10)]
    stream = streams.folder(manifest(tmp_path, rows, header="path, label ,split"))
    assert len(stream) == 1
    assert [len(part) for part in (stream[0].train, stream[0].val, stream[0].test)] == [10, 2, 8]
    assert streams.folder(tmp_path / "list.csv", val=0)[0].val is None


def test_large_sets_are_read_when_needed(tmp_path):
    write(tmp_path, SAME)
    small = streams.folder(tmp_path, augment=True)
    large = streams.folder(tmp_path, augment=True, memory_gb=0, workers=2)
    for one, other in zip(small, large, strict=True):
        assert isinstance(other.train, MappedData)
        assert torch.equal(one.train.targets, other.train.targets)
        order = list(torch.arange(len(one.train)).split(4))
        for seed in (None, 5):
            generators = [None if seed is None else torch.Generator().manual_seed(seed) for _ in range(2)]
            pairs = zip(
                one.train.batches(order, generators[0]),
                other.train.batches(order, generators[1]),
                strict=True,
            )
            assert all(torch.equal(a.inputs, b.inputs) for a, b in pairs)


def test_mixed_sizes(tmp_path):
    write(tmp_path, SAME)
    write(tmp_path, {"site 3": [0, 1, 2]}, size=12)
    with pytest.raises(UserError, match=r"2 different sizes, such as 8x8 \(0\.png\), 12x12 .*size=") as error:
        streams.folder(tmp_path)
    assert "\n" not in str(error.value)
    assert streams.folder(tmp_path, size=16).input_shape == (3, 16, 16)


@pytest.mark.parametrize("memory_gb", [1.0, 0.0])
def test_unreadable_images(tmp_path, memory_gb):
    write(tmp_path, SAME)
    broken = tmp_path / "site 1" / "digit 0" / "3.png"
    broken.write_bytes(broken.read_bytes()[:70])
    (tmp_path / "site 2" / "digit 1" / "5.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"of 60 images cannot be read.*skip_unreadable=True") as error:
        streams.folder(tmp_path, memory_gb=memory_gb)
    assert "\n" not in str(error.value)
    with pytest.warns(UserWarning, match="2 of 60 images cannot be read"):
        stream = streams.folder(tmp_path, memory_gb=memory_gb, skip_unreadable=True)
    assert sum(len(part) for task in stream for part in (task.train, task.val, task.test)) == 58
    assert len(stream.info["unreadable"]) == 2
    assert "3.png" in stream.info["unreadable"][0]


@pytest.mark.filterwarnings("default")
def test_the_command_line_warns_in_plain_lines(tmp_path, capsys):
    write(tmp_path, SAME)
    (tmp_path / "site 2" / "digit 1" / "5.png").write_bytes(b"no image")
    assert main(["data", "check", "folder", "--path", str(tmp_path), "--skip-unreadable", "true"]) == 0
    assert capsys.readouterr().err.startswith("manymodes: warning: 1 of 60 images cannot be read")


def test_image_that_breaks_later_is_named(tmp_path):
    write(tmp_path, SAME)
    stream = streams.folder(tmp_path, memory_gb=0, workers=1)
    task = stream[0]
    for file in tmp_path.rglob("*.png"):
        file.write_bytes(b"gone bad")
    with pytest.raises(UserError, match=r"image .*\.png: .*; put it back and give the same") as error:
        list(task.train.batches([torch.arange(4)]))
    assert "\n" not in str(error.value)
    for file in tmp_path.rglob("*.png"):
        file.unlink()
    with pytest.raises(UserError, match=r"image .*\.png is not there any more; put it back and"):
        list(task.train.batches([torch.arange(4)]))


def case(make, match, **options):
    return pytest.param(make, match, options, id=match)


def _empty(root):
    write(root, SAME)
    (root / "site 1" / "digit 7").mkdir()
    (root / "site 1" / "digit 7" / "notes.txt").write_text("no image")
    return root


def _deep(root):
    write(root / "a" / "b", SAME)
    return write(root, SAME)


def _mixed_parts(root):
    write(root / "train", SAME)
    return write(root, {"site 9": [0, 1]})


def _hollow_task(root):
    write(root, SAME)
    shutil.rmtree(root / "site 2")
    (root / "site 2").mkdir()
    return root


CASES = [
    case(
        lambda r: write(r, {"a": [0, 1, 2], "b": [0, 1]}),
        "has no sample of class 'digit 2'",
        scenario="instance",
    ),
    case(lambda r: write(r, {"a": [0, 1], "b": [2]}), "'b' has one class only", scenario="task"),
    case(lambda r: write(r, {"a": [0]}), "one class only, 'digit 0'"),
    case(lambda r: r / "nowhere", "neither a directory of images nor a CSV"),
    case(lambda r: r, "has no images"),
    case(_empty, "digit 7 has no images"),
    case(_hollow_task, "site 2 has no images"),
    case(_deep, "another depth"),
    case(_mixed_parts, "all or none"),
    case(lambda r: write(r, SAME), "unknown scenario 'domain'", scenario="domain"),
    case(lambda r: write(r, SAME), "size=0", size=0),
    case(lambda r: write(r, SAME), "channels=4", channels=4),
    case(lambda r: write(r, SAME), "val=1.5", val=1.5),
    case(lambda r: write(r, SAME), "leave nothing to train on", val=0.5, test=0.5),
    case(lambda r: write(r, SAME), "workers=-1", workers=-1),
    case(lambda r: write(r, SAME), "did you mean 'imagenet'", normalise="imagenets"),
    case(lambda r: write(r, SAME), "limit=2", limit=2),
    case(lambda r: manifest(r, ["a.png,1,2"], header="file,label,task"), "no column 'path'"),
    case(lambda r: manifest(r, []), "lists no images"),
    case(lambda r: manifest(r, ["images/x.png,1,a", "images/digit 0/0.png,2,a"]), "1 of 2 images listed"),
    case(lambda r: manifest(r, ["images/digit 0/0.png,,a"]), "line 2: no value for 'label'"),
    case(lambda r: manifest(r, ["images/digit 0/0.png"]), "line 2: no value for 'label'"),
    case(lambda r: manifest(r, ["images/digit 0/0.png,1,a,b,c"]), "more values than columns"),
    case(
        lambda r: manifest(r, ["images/digit 0/0.png,1,trian"], header="path,label,split"),
        "did you mean 'train'",
    ),
    case(lambda r: manifest(r, ['"images\n/x\0.png",1,a']), "cannot be read as a CSV|are not there"),
]


@pytest.mark.parametrize(("make", "match", "options"), CASES)
def test_mistakes_get_one_line(make, match, options, tmp_path):
    path = make(tmp_path)
    with pytest.raises(UserError, match=match) as error:
        streams.folder(path, **options)
    assert "\n" not in str(error.value)


@pytest.fixture(scope="module")
def some_images(tmp_path_factory):
    return write(tmp_path_factory.mktemp("fuzz"), {"images": range(4)})


@given(
    st.lists(st.lists(st.text(max_size=12), min_size=1, max_size=5), max_size=6),
    st.sampled_from(
        [
            "path,label,task",
            "path,label",
            "path,label,split",
            "path",
            "label,path,task,path",
            "\ufeffpath,label",
        ]
    ),
    st.binary(max_size=10),
)
@settings(max_examples=200, deadline=None)
def test_any_manifest_loads_or_is_one_line(some_images, rows, header, tail):
    good = [f"images/digit {d}/{n}.png,{d},{d % 2}" for d in range(4) for n in range(3)]
    lines = [header, *good, *(",".join(row) for row in rows)]
    (some_images / "list.csv").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass") + tail)
    try:
        streams.folder(some_images / "list.csv", val=0, test=0)
    except UserError as error:
        message = str(error)
    else:
        message = ""
    assert "\n" not in message


def test_learnt_and_predicted_in_five_lines(tmp_path):
    write(tmp_path, SAME, count=20)
    stream = mm.streams.folder(tmp_path, channels=1, normalise="none")
    learner = mm.Finetune(mm.models.mlp(64, outputs=stream.num_outputs), epochs=8, batch_size=8, lr=5e-3)
    for task in stream:
        learner.learn(task)
    test = next(stream[0].test.batches([torch.arange(12)]))
    assert (learner.predict(test.inputs).argmax(1) == test.targets).float().mean() > 0.8


def test_binary_manifest(tmp_path):
    (tmp_path / "list.csv").write_bytes(bytes(range(128, 256)))
    with pytest.raises(UserError, match="UTF-8"):
        streams.folder(tmp_path / "list.csv")
