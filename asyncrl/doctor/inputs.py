"""Checks of what a run starts from: the model directory and the data files."""

from collections.abc import Iterator

from asyncrl.config import Config
from asyncrl.data import open_dataset
from asyncrl.doctor.finding import Finding
from asyncrl.errors import DataError
from asyncrl.rollout.chat import ChatTemplate
from weightsync.errors import WeightsyncError
from weightsync.manifest import Manifest


def check_model(config: Config) -> Iterator[Finding]:
    """The model directory: weights that both sides can start from, a tokenizer, a chat template."""
    path = config.model.path
    if not (path / "config.json").exists():
        yield _made_by_the_starter(config, "model", f"{path} holds no model", "Set model.path to a Hugging Face model.")
        return
    try:
        manifest = Manifest.from_model_dir(path, config.model.wire_dtype)
    except WeightsyncError as error:
        yield Finding("weights", False, str(error), "See model.path and model.wire_dtype.")
    else:
        dtypes = ", ".join(sorted({spec.dtype for spec in manifest.tensors}))
        yield Finding("weights", True, f"{path}: layout {manifest.layout_id}, in {dtypes}")
    try:
        ChatTemplate.from_model_dir(path)
    except DataError as error:
        yield Finding(
            "chat template", False, str(error), "A base model needs one too: it says how prompts are written."
        )
    else:
        yield Finding("chat template", True, "renders")


def check_data(config: Config) -> Iterator[Finding]:
    """Every row of the data files, read as a run would read it."""
    template = None
    if (config.model.path / "config.json").exists():
        try:
            template = ChatTemplate.from_model_dir(config.model.path)
        except DataError:
            template = None  # said by the check of the model; rows are then read without counting tokens
    for name, files in (("training data", config.data.training_files), ("held-out data", config.data.val_files)):
        missing = [str(path) for path in files if not path.exists()]
        if not files and name == "held-out data":
            yield Finding(name, True, "none: nothing will be evaluated", "Set data.val_files to see held-out scores.")
        elif missing:
            fix = f"Set data.{'train' if name == 'training data' else 'val'}_files to files that exist."
            yield _made_by_the_starter(config, name, f"{', '.join(missing)} missing", fix)
        else:
            try:
                yield Finding(name, True, open_dataset(files, config.data, template).report.summary())
            except DataError as error:
                yield Finding(name, False, str(error), "asyncrl check-data FILE... shows every row.")


def _made_by_the_starter(config: Config, name: str, detail: str, fix: str) -> Finding:
    if config.starter is not None:
        return Finding(name, True, f"{detail}; it will be made from the section starter")
    return Finding(name, False, detail, f"{fix} Or describe one to be made in the section starter.")
