"""Where the teachers of a run are: those with a path get an address on this machine, before anything is started."""

from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer

from asyncrl.cluster.ports import ReservedPort
from asyncrl.config import Config, TeacherConfig
from asyncrl.errors import ConfigError, PreflightError
from asyncrl.inference.launcher import reserve_port
from asyncrl.inference.listening import own_address
from asyncrl.run.devices import num_devices


@dataclass(frozen=True)
class ServedTeacher:
    """A teacher that this machine serves; its port stays its own while this lives."""

    name: str
    path: Path
    url: str
    port: ReservedPort = field(compare=False, repr=False)


def with_addresses(config: Config) -> tuple[Config, tuple[ServedTeacher, ...]]:
    """The configuration in which every teacher has an address, and the teachers that are to be served at theirs.

    Raises:
        ConfigError: a teacher's tokenizer is not the policy's, so that its logprobs would be of other texts.
        PreflightError: a teacher would share its device with the trainer.
    """
    teachers, served = [], []
    for teacher in config.teachers:
        if teacher.path is not None:
            _check(config, teacher, teacher.path)
            host = own_address(config.inference.host)
            port = reserve_port(host, 0)
            url = f"http://{f'[{host}]' if ':' in host else host}:{port.number}"
            served.append(ServedTeacher(teacher.name, teacher.path, url, port))
            teacher = teacher.model_copy(update={"path": None, "urls": (url,)})
        teachers.append(teacher)
    return config.model_copy(update={"teachers": tuple(teachers)}), tuple(served)


def _check(config: Config, teacher: TeacherConfig, path: Path) -> None:
    if config.plan.shares_gpus and num_devices():
        raise PreflightError(
            f"teacher {teacher.name!r} has a path, but in this mode servers and trainer take turns on their devices, "
            "and a teacher cannot step aside. Serve it elsewhere and set its urls, or choose a mode whose servers "
            "have devices of their own."
        )
    own, of_policy = _vocabulary(path), _vocabulary(config.model.path)
    if own != of_policy:
        token, number = min(own.items() ^ of_policy.items(), key=lambda item: item[1])
        raise ConfigError(
            f"teacher {teacher.name!r}: the tokenizer of {path} is not that of model.path = {config.model.path}; "
            f"token {token!r} with id {number} is in one of them only. Its logprobs would be of other texts. Choose a "
            "teacher with the same tokenizer."
        )


def _vocabulary(path: Path) -> dict[str, int]:
    file = path / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{file} does not exist: a teacher's tokens could not be compared with the policy's.")
    vocabulary: dict[str, int] = Tokenizer.from_file(str(file)).get_vocab(with_added_tokens=True)
    return vocabulary
