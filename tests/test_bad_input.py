"""Mistakes on the command line and in Python: one clear line each, exit code 2, nothing half-written."""

import numpy as np
import pytest
import torch

import manymodes as mm
from manymodes.cli import main

SMALL = "--tasks 2 --limit 20 --epochs 1 --model mlp --hidden [8]"

# What is typed, and what the one line must say. DIR is an empty folder.
MISTAKES = {
    # names
    "rum": "unknown command 'rum'; did you mean 'run'?",
    "run --strategy ewk": "unknown strategy 'ewk'; did you mean 'ewc'? Valid: agem, ensemble",
    "run --strategy no.such:Thing": "strategy 'no.such:Thing' cannot be imported",
    "run --strategy os:getcwd": "is not a subclass of manymodes.Strategy",
    "run --strategy": "--strategy needs a value",
    "run strategy mota": "unexpected word 'strategy': options start with --",
    "run --stream digitz": "unknown stream 'digitz'; did you mean 'digits'?",
    "run --stream huggingface:": "needs a name, e.g. huggingface:cifar100",
    "run --model resnet19": "unknown model 'resnet19'; did you mean 'resnet18'?",
    "run --model no.such:make": "cannot import the model 'no.such:make'",
    "run --epoch 3": "unknown option '--epoch'; did you mean '--epochs'?",
    "run --head multi": "--head is ambiguous: say --stream.head or --model.head",
    "run --profile papr": "unknown profile 'papr'; did you mean 'paper'?",
    "run --log excel": "Valid: csv, mlflow, tensorboard, wandb",
    # values of a strategy
    "run --modes 0": "modes must be a whole number from 1, not 0",
    "run --modes two": "modes must be a whole number, not 'two'",
    "run --strength -1": "strength must be a number from 0, not -1.0",
    "run --strength nan": "strength must be a number, not 'nan'",
    "run --separation -0.1": "separation must be a number from 0, not -0.1",
    "run --joint-weight 2": "joint_weight must be a number from 0 to 1, not 2.0",
    "run --drift sideways": "unknown drift 'sideways'. Valid: both, fisher, function",
    "run --fisher both": "unknown fisher 'both'. Valid: joint, mode",
    "run --fisher-kind magic": "unknown fisher_kind 'magic'. Valid: empirical, exact, sampled",
    "run --order random": "unknown order 'random'. Valid: fixed, rigidity",
    "run --search test": "unknown search 'test'. Valid: train, val",
    "run --temperature 0": "temperature must be a number above 0, not 0.0",
    "run --drift-weight -1": "drift_weight must be a number from 0, not -1.0",
    "run --epochs 0": "epochs must be a whole number from 1, not 0",
    "run --batch-size 0": "batch_size must be a whole number from 1, not 0",
    "run --lr 0": "lr must be a number above 0, not 0.0",
    "run --optimiser adam": "unknown optimiser 'adam'; did you mean 'adamw'?",
    "run --precision fp16": "unknown precision 'fp16'; did you mean 'bf16'?",
    "run --weight-decay -1": "weight_decay must be a number from 0, not -1.0",
    "run --device gpu": "device 'gpu' is not there; valid: auto, cpu",
    "run --strategy er --budget -1": "budget must be a whole number of samples per class from 0, not -1",
    "run --strategy agem --epsilon -1": "epsilon must be a number from 0, not -1.0",
    "run --strategy si --damping 0": "damping must be a number above 0, not 0.0",
    "run --strategy ensemble --init twins": "unknown init 'twins'. Valid: distance, seeds",
    # values of a stream or network
    "run --scenario domain": "unknown scenario 'domain'. Valid: class, instance, task",
    "run --tasks 0": "tasks=0: 10 classes make 1 to 10 tasks",
    "run --tasks 9": "has one class only",
    "run --limit 0": "limit=0: task 'task 1' has 2 classes, so give it at least as many samples",
    "run --model mlp --width 0": "width must be above 0",
    "run --model mlp --hidden [0]": "a hidden layer's size must be a whole number of at least 1, not 0",
    "run --model mlp --weights DIR/none.safetensors": "there is no file",
    "run --stream split-cifar100 --data-dir DIR/none": "does not exist. Give data_dir with",
    "run --stream folder --path DIR/none": "is neither a directory of images nor a CSV file",
    "run --stream arrays --path DIR/none.npz": "is not there: give an npz file with x, y",
    # seeds, places, files
    "run --seeds 1.5": "seeds must be whole numbers like 0,1,2 or 0..4, not '1.5'",
    "run --seed -1": "seeds must be whole numbers from 0, not '-1'",
    "run --jobs 0": "jobs must be a whole number from 1, not 0",
    "run --threads -1": "threads must be a whole number from 1",
    "run --out /dev/null/runs": "cannot write into /dev/null/runs",
    "run --config DIR/none.yaml": "--config: cannot read",
    "run --resume DIR/none": "is not a run directory: it has no config.yaml",
    # the other commands
    "compare --strategies ewc,ewk": "unknown strategy 'ewk'; did you mean 'ewc'?",
    "compare --strategy ewc": "--strategies ewc,...",
    "compare --strategies ewc,ewc": "--strategies names 'ewc' twice",
    "compare --strategies mota:modes=0": "modes must be a whole number from 1, not 0",
    "compare --equal-capacity perhaps": "equal_capacity must be true or false, not 'perhaps'",
    "compare --scenarios task,domain": "unknown scenario in --scenarios 'domain'",
    "compare --stream tests.toys:flat --scenarios all": "stream 'tests.toys:flat' has one scenario only",
    "list things": "unknown kind of thing 'things'. Valid: models, recipes, strategies, streams",
    "data check digitz": "unknown stream 'digitz'; did you mean 'digits'?",
    "tune --strategy ewc": "nothing to search: give --space",
    "runs DIR/none": "there is no folder",
    "report DIR/none": "is not a folder",
    "predict DIR/none x.png": "is not there: give a run directory or a learner.safetensors",
    "evaluate DIR/none": "is not there: give a run directory or a learner.safetensors",
    "learn DIR/none more": "is not there: give a run directory or a learner.safetensors",
    "export DIR/none out.onnx": "is not there: give a run directory or a learner.safetensors",
    "reproduce table9": "unknown table or figure 'table9'; did you mean 'table3'?",
}


def line_of(typed, folder, capsys):
    """The one line that a mistake gives; exit code 2."""
    assert main(typed.replace("DIR", str(folder)).split()) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("manymodes: error: ")
    assert not any("Traceback" in line for line in lines)
    return lines[-1], lines[:-1]


@pytest.mark.parametrize("typed", MISTAKES)
def test_a_mistake_is_one_line(typed, tmp_path, monkeypatch, capsys):
    assert len(MISTAKES) >= 40
    monkeypatch.chdir(tmp_path)
    line, others = line_of(typed, tmp_path, capsys)
    assert MISTAKES[typed] in line
    assert others == []
    assert list(tmp_path.rglob("*")) == []  # nothing half-written, not even a folder


def arrays(folder, **changes):
    """An npz file of 60 samples in two tasks, with something wrong in it."""
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    found = {"x": x, "y": np.arange(60) % 4, "task": np.arange(60) % 4 // 2} | changes
    np.savez(folder / "data.npz", **{name: value for name, value in found.items() if value is not None})


NAN = np.full((60, 5), np.nan, dtype=np.float32)
BAD_ARRAYS = {
    "NaN inputs": ({"x": NAN}, "x has NaN or infinite values in 60 of 60 samples, first in sample 0"),
    "fewer labels": ({"y": np.zeros(59, dtype=int)}, "x has 60 samples but y has 59"),
    "labels with a half": ({"y": np.arange(60) % 4 + 0.5}, "y has values that are no whole numbers"),
    "no labels": ({"y": None}, "there is no array 'y'"),
    "pickled objects": ({"x": np.array([object()] * 60)}, "cannot be read as an npz file of plain arrays"),
    "one class a task": ({"y": np.arange(60) % 4 // 2}, "task '0' has one class only"),
    "an empty task": (
        {"split": np.where(np.arange(60) % 4 < 2, "train", "test")},
        "task '1' has no training sample",
    ),
}


@pytest.mark.parametrize("what", BAD_ARRAYS)
def test_wrong_data_is_one_line(what, tmp_path, monkeypatch, capsys):
    changes, says = BAD_ARRAYS[what]
    monkeypatch.chdir(tmp_path)
    arrays(tmp_path, **changes)
    line, others = line_of("run --stream arrays --path data.npz --epochs 1", tmp_path, capsys)
    assert says in line
    assert others == []
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


X, Y = torch.zeros(10, 4), torch.arange(10) % 2
SPOILT = X.clone()
SPOILT[3, 1], SPOILT[3, 2], SPOILT[7, 0] = torch.inf, -torch.inf, torch.nan


def finetune():
    return mm.Finetune(mm.models.mlp(4, outputs=3), epochs=1)


IN_PYTHON = {
    "the labels [0, 1, 2, 3, 4] need 5 outputs": (
        lambda: finetune().learn(X, torch.arange(10) % 5),
        "has classes [0, 1, 2, 3, 4] but the model has 3 outputs (0 to 2): build it with outputs=5",
    ),
    "a label outside the classes": (
        lambda: finetune().learn(X, Y, classes=(0, 2)), "has labels [1] in its train data that are not among",
    ),
    "a label outside, held out": (
        lambda: finetune().learn(X, Y, val=(X, Y + 1)), "has labels [2] in its val data that are not among",
    ),
    "a label below zero": (lambda: finetune().learn(X, -Y), "numbers of outputs, from 0, not [-1, 0]"),
    "a label and a half": (lambda: finetune().learn(X, Y + 0.5), "whole numbers, but sample 0 has 0.5"),
    "labels as rows": (lambda: finetune().learn(X, X), "one-hot rows become numbers by targets.argmax(1)"),
    "fewer labels": (lambda: finetune().learn(X, Y[:9]), "10 inputs but 9 targets"),
    "no sample": (lambda: finetune().learn(X[:0], Y[:0]), "has no training sample"),
    "NaN inputs": (
        lambda: finetune().learn(SPOILT, Y),
        "NaN or infinite inputs in 2 of 10 train samples of task 'task 1' (the first is sample 3)",
    ),
    "NaN inputs, held out": (
        lambda: finetune().learn(X, Y, val=(SPOILT, Y)), "NaN or infinite inputs in 2 of 10 val samples",
    ),
    "NaN inputs to predict": (lambda: finetune().predict(SPOILT), "in 2 of 10 samples to predict"),
    "nothing to predict": (lambda: finetune().predict(X[:0]), "there is no sample to predict"),
    "inputs of another shape": (
        lambda: finetune().learn(X[:, :3], Y),
        "the model does not accept an input of shape (3,) (torch.float32)",
    ),
    "classes the model has not": (
        lambda: finetune().predict(X, classes=[7]), "classes must be outputs of the model, 0 to 2, not [7]",
    ),
    "a word": (lambda: finetune().learn("photos"), "cannot learn from str: give a Task, (inputs, targets)"),
    "a class for a model": (lambda: mm.EWC(torch.nn.Linear), "not the class Linear: call it"),
    "an option that is none": (
        lambda: mm.EWC(torch.nn.Linear(4, 2), streng=3), "'streng'; did you mean 'strength'?",
    ),
    "no such file": (lambda: mm.load("none.safetensors"), "cannot read none.safetensors: no such file"),
    "no place to save": (lambda: finetune().save("/dev/null/it"), "cannot write /dev/null/it"),
}  # fmt: skip


@pytest.mark.parametrize("what", IN_PYTHON)
def test_a_mistake_in_python_is_one_clear_line(what, tmp_path, monkeypatch):
    call, says = IN_PYTHON[what]
    monkeypatch.chdir(tmp_path)
    with pytest.raises(mm.UserError) as error:
        call()
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_large_numbers_are_no_mistake():
    finetune().predict(torch.full((10, 4), 3e38))  # their sum is not finite, they are


@pytest.mark.parametrize(
    ("strategy", "lr", "says"),
    [
        (
            "finetune",
            "1e30",
            "the outputs of mode 0 are not finite, at the end of task 'task 1': try a lower lr",
        ),
        ("ewc", "1e30", "a Fisher of it would not be either, at the end of task 'task 1': try a lower lr"),
        ("mota", "1e15", "the drift of mode 0 became inf in epoch 1: try a lower lr"),
        ("mota --epochs 3", "1e30", "the loss became nan in task 'task 1', epoch 2, mode 0: try a lower lr"),
    ],
)
def test_a_loss_that_diverges_is_one_line_and_leaves_no_result(strategy, lr, says, tmp_path, capsys):
    line, _ = line_of(f"run {SMALL} --strategy {strategy} --lr {lr} --out DIR/runs", tmp_path, capsys)
    assert says in line
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "failure.json").exists()
    assert not (run / "metrics.json").exists()
    assert not list(run.rglob("*.tmp"))
