"""Learners on the Hugging Face hub: a folder with weights, configuration and model card, there and back.

>>> import tempfile, manymodes as mm
>>> learner = mm.MOTA(mm.models.mlp(4, outputs=2), modes=2)
>>> folder = tempfile.mkdtemp()
>>> [path.name for path in save_pretrained(learner, folder)]
['model.safetensors', 'config.json', 'README.md']
>>> from_pretrained(folder).options["modes"]
2
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

from manymodes import files
from manymodes.contrib.card import model_card
from manymodes.errors import UserError, require
from manymodes.runfiles import RunFiles
from manymodes.saving import load, save
from manymodes.strategies.base import Strategy
from manymodes.strategies.registry import name_of
from manymodes.version import __version__

WEIGHTS, CONFIG, CARD, REPORT = "model.safetensors", "config.json", "README.md", "report.html"
_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")


def save_pretrained(
    learner: Strategy,
    folder: str | Path,
    *,
    name: str | None = None,
    run: str | Path | None = None,
    licence: str | None = None,
) -> list[Path]:
    """Write a learner as the hub has models: model.safetensors, config.json, README.md.

    Args:
        learner: Any strategy, between tasks or within one.
        folder: Made where it is not there; files of the same names are replaced.
        name: What the card calls it; the folder's name unless given.
        run: The run directory it comes from: its metrics go into the card, its report.html beside it.
        licence: An identifier of the hub, such as "apache-2.0".
    """
    folder = Path(folder).expanduser()
    found = None if run is None else _metrics(Path(run).expanduser())
    report = None if run is None else _report(Path(run).expanduser())
    title = folder.resolve().name if name is None else name
    card = model_card(learner, title, found, licence=licence, report=report is not None)
    save(learner, folder / WEIGHTS)
    files.write_json(folder / CONFIG, config(learner))
    files.write_text(folder / CARD, card)
    written = [folder / WEIGHTS, folder / CONFIG, folder / CARD]
    if report is not None:
        files.write_atomically(folder / REPORT, lambda path: _copy(report, path))
        written.append(folder / REPORT)
    return written


def from_pretrained(
    name: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    model: nn.Module | None = None,
    strategy: type[Strategy] | None = None,
    **options: Any,
) -> Strategy:
    """The learner of a folder that `save_pretrained` wrote, or of a repository of the hub.

    Nothing is read but model.safetensors, and nothing in it is run. `model`, `strategy` and `options` are
    those of `manymodes.load`.

    Args:
        name: A folder, or OWNER/NAME on the hub.
        revision: A branch, tag or commit of the repository.
        token: For private repositories; the one that is logged in unless given.
        model: The network, where it is not one of ours.
        strategy: The class, where it is not registered.
        **options: Settings to change, such as device="cpu".
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        require((folder / WEIGHTS).is_file(), f"{folder} has no {WEIGHTS}: save_pretrained writes it")
        return load(folder / WEIGHTS, model=model, strategy=strategy, **options)
    require(
        _NAME.fullmatch(str(name)) is not None,
        f"{str(name)!r} is neither a folder nor a repository of the hub (OWNER/NAME)",
    )
    hub = _hub()
    try:
        path = hub.hf_hub_download(str(name), WEIGHTS, revision=revision, token=token)
    except Exception as error:  # network, hub and names fail in ways of their own
        raise UserError(f"cannot get {name} from the hub: {_line(error)}") from None
    return load(path, model=model, strategy=strategy, **options)


def push_to_hub(
    learner: Strategy,
    name: str,
    *,
    run: str | Path | None = None,
    licence: str | None = None,
    private: bool = False,
    token: str | None = None,
    message: str = "Upload learner",
    with_samples: bool = False,
) -> str:
    """Put a learner on the hub (the repository is made where there is none); returns the commit's address.

    Args:
        learner: Any strategy.
        name: OWNER/NAME.
        run: See `save_pretrained`.
        licence: See `save_pretrained`.
        private: Make a new repository private.
        token: The one that is logged in unless given.
        message: The commit's message.
        with_samples: A learner that rehearses has training samples in its file, and is refused unless
            this says that they may be published.
    """
    require(_NAME.fullmatch(name) is not None, f"{name!r} is not a repository of the hub: give OWNER/NAME")
    require(
        with_samples or not learner.rehearses,
        f"{name_of(type(learner))} keeps samples that it learnt from, and they would be published: "
        "with_samples=True if they may be",
    )
    hub = _hub()
    with tempfile.TemporaryDirectory() as folder:
        save_pretrained(learner, folder, name=name, run=run, licence=licence)
        api = hub.HfApi(token=token)
        try:
            api.create_repo(name, private=private, exist_ok=True)
            commit = api.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
        except Exception as error:
            raise UserError(f"cannot put {name} on the hub: {_line(error)}") from None
    return str(commit.commit_url)


def config(learner: Strategy) -> dict[str, Any]:
    """config.json: what a learner is, for people and tools; loading does not need it."""
    modes, parameters = learner.modes.theta.shape
    return {
        "library_name": "manymodes",
        "version": __version__,
        "strategy": name_of(type(learner)),
        "options": learner.options,
        "model": getattr(learner.model.module, "recipe", None),
        "modes": modes,
        "parameters": parameters,
        "tasks": [list(head) for head in learner.heads],
        **learner.about,
    }


def _metrics(run: Path) -> dict[str, Any]:
    found = RunFiles(run).metrics()
    if found is None or "average_accuracy" not in found:
        raise UserError(f"{run} is not the directory of a finished run: it has no metrics.json of one")
    return found


def _report(run: Path) -> Path | None:
    """The report of the run, or of the folder that holds it."""
    return next((path for path in (run / REPORT, run.parent / REPORT) if path.is_file()), None)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _hub() -> Any:
    try:
        import huggingface_hub
    except ImportError:
        raise UserError('the hub needs huggingface_hub: pip install "manymodes[hub]"') from None
    return huggingface_hub


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
