"""The bundled stream: 1,797 real handwritten digits of 8x8 pixels (scikit-learn's copy of the UCI set)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from manymodes.errors import require, unknown
from manymodes.streams.split import (
    Pool,
    Splits,
    arriving,
    class_order,
    make_tasks,
    stratified,
    tasks_by_class,
)
from manymodes.task import SCENARIOS, Stream, TensorData

INK = 16  # a pixel counts the inked cells of a 4x4 square, 0 to 16


def digits(
    scenario: str = "task",
    *,
    tasks: int | None = None,
    seed: int = 0,
    head: str = "multi",
    limit: int | None = None,
    unseen: int = 0,
    label_noise: float = 0.0,
) -> Stream:
    """Real handwritten digits, 70/10/20 into train, val and test; nothing to download.

    "task" and "class": five tasks of two digits each, in an order fixed by `seed`. "instance": all ten
    digits in every task, each task another rendition of the handwriting (as written, rotated, shifted,
    inverted, thickened, mirrored). The digits are split once, before they are rendered: whatever the
    rendition, a digit that one task trains on is never one that any task tests on.

    Args:
        scenario: "task", "class" or "instance".
        tasks: number of tasks; 5 unless given.
        seed: fixes the order of the classes and the split.
        head: "multi" (ten outputs) or "shared" (the tasks share two outputs; scenario "task" only).
        limit: at most this many training samples per task, the same number of each class.
        unseen: so many classes never arrive, and it is measured how well a learner tells their test samples
            from those of its own classes (AUROC; not for scenario "instance").
        label_noise: share of training and validation samples with a wrong label, another of the same task.

    >>> stream = digits()
    >>> len(stream), stream.num_outputs, stream.input_shape, len(stream[0].classes)
    (5, 10, (1, 8, 8), 2)
    >>> digits("instance")[1].name
    'rotated'

    """
    if scenario not in SCENARIOS:
        raise unknown("scenario", scenario, SCENARIOS)
    tasks = 5 if tasks is None else tasks
    images, labels = _load()
    splits = stratified(labels, seed)
    order = arriving(class_order(10, seed), unseen, scenario)
    if scenario == "instance":
        require(
            isinstance(tasks, int) and 1 <= tasks <= len(RENDITIONS),
            f"tasks={tasks!r}: scenario='instance' has 1 to {len(RENDITIONS)} renditions",
        )
        names = list(RENDITIONS)[:tasks]
        shifts = torch.arange(tasks) * len(images)
        task_of = torch.arange(tasks).repeat_interleave(len(images))
        splits = Splits(*((shifts[:, None] + part).flatten() for part in splits))
        images, labels = torch.cat([RENDITIONS[name](images) for name in names]), labels.repeat(tasks)
    else:
        task_of = tasks_by_class(labels, order, tasks)
        names = [f"task {task + 1}" for task in range(tasks)]
    pool = Pool(
        name="digits",
        labels=labels,
        class_names=tuple(str(digit) for digit in range(10)),
        splits=splits,
        select=lambda index, targets, _: TensorData(images[index], targets, transform=_to_unit),
        input_shape=(1, 8, 8),
        info={
            "source": "scikit-learn load_digits (UCI Optical Recognition of Handwritten Digits, test part)",
            "licence": "CC BY 4.0",
            "split": "70/10/20 per class",
            "class_order": [str(digit) for digit in order],
        },
    )
    return make_tasks(pool, task_of, names, scenario=scenario, head=head, limit=limit, seed=seed,
                      unseen=unseen, label_noise=label_noise)  # fmt: skip


def _load() -> tuple[Tensor, Tensor]:
    from sklearn.datasets import load_digits

    bundle = load_digits()
    images_S1HW = torch.from_numpy(bundle.images).to(torch.uint8)[:, None]
    return images_S1HW, torch.from_numpy(bundle.target).long()


def _to_unit(raw: Tensor) -> Tensor:
    return raw.float() / INK


def _thicken(images: Tensor) -> Tensor:
    """Every pixel takes the most ink among itself and its neighbours below and to the right."""
    down, right = torch.zeros_like(images), torch.zeros_like(images)
    down[..., 1:, :], right[..., 1:] = images[..., :-1, :], images[..., :-1]
    return torch.maximum(images, torch.maximum(down, right))


RENDITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "as written": lambda images: images,
    "rotated": lambda images: images.rot90(1, (-2, -1)),
    "shifted": lambda images: images.roll((2, 2), (-2, -1)),  # around the edge, so that no ink is lost
    "inverted": lambda images: INK - images,
    "thickened": _thicken,
    "mirrored": lambda images: images.flip(-1),
}
