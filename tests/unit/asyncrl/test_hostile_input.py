"""Configurations, answers, checkpoints and names that want to run code or leave their folder (B216 to B221)."""

import ast
import json
import os
import pickle
import socket
from pathlib import Path

import pytest
import torch

from asyncrl.config import CheckpointConfig, InferenceConfig
from asyncrl.envs.rewards import REWARDS, compute_score
from asyncrl.envs.rewards.user_file import load_reward
from asyncrl.envs.tools.base import ToolError
from asyncrl.envs.tools.calculator import calc
from asyncrl.errors import CheckpointError, ConfigError, RewardError
from asyncrl.inference.local_server import bind, parse_args
from asyncrl.load_config import load
from asyncrl.trainer import checkpoint_files as files
from asyncrl.trainer.checkpoint import Checkpoints
from asyncrl.trainer.checkpoint_files import CheckpointName
from asyncrl.trainer.evaluation import Evaluation
from asyncrl.trainer.parallel import OneRank
from buffer import Group, Trajectory, pack
from buffer.errors import BufferError
from buffer.keys import check_run
from tests.support.groups import row
from tests.support.tiny_policy import make_policy, write_tiny_model
from weightsync.errors import ModelDirError
from weightsync.manifest import Manifest

ROOT = Path(__file__).resolve().parents[3]
TINY = ROOT / "configs" / "tiny_cpu.yaml"


class Call:
    """Calls a function when it is unpickled."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> object:
        return self.call


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


def resealed(directory: Path, name: str, content: bytes) -> None:
    """Replace one file of a checkpoint and make its manifest true again, as whoever can write the one can."""
    (directory / name).write_bytes(content)
    manifest = json.loads((directory / files.MANIFEST).read_text())
    manifest["files"][name] = {"bytes": len(content), "blake3": files.hash_file(directory / name)}
    (directory / files.MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_checkpoint_with_a_pickle_in_it_is_refused_and_runs_nothing(
    model_dir: Path, tmp_path: Path, form: str
) -> None:
    """B216: a chain over builtins.getattr, where a deny list would let it pass."""
    marker = tmp_path / "marker"
    chain = Call(getattr, Call(__import__, "pathlib"), "Path")
    bomb = {"layout": chain, "w": Call(Path.touch, marker)}
    policy = make_policy(model_dir)
    store = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
    saved = store.save(
        CheckpointName(1, 1, 1), policy, {"step": 1, "optimizer_steps": 0, "ledger": {}, "digests": {}}, OneRank()
    )
    if form == "torch":
        torch.save(bomb, tmp_path / "bomb.pt")
        content = (tmp_path / "bomb.pt").read_bytes()
    else:
        content = pickle.dumps(bomb)
    resealed(saved, "rank-00000.safetensors", content)
    newest = store.newest()
    assert newest is not None
    with pytest.raises(CheckpointError, match=r"rank-00000\.safetensors cannot be read"):
        store.load(newest, policy)
    assert not marker.exists()


def test_a_model_directory_of_pickles_holds_no_weights(tmp_path: Path) -> None:
    """B216: pytorch_model.bin is not looked at; only safetensors are."""
    marker = tmp_path / "marker"
    torch.save({"w": Call(Path.touch, marker)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelDirError, match="safetensors"):
        Manifest.from_model_dir(tmp_path, "bfloat16")
    assert not marker.exists()


def test_servers_listen_on_this_machine_alone_unless_they_are_told() -> None:
    """B217: the default of the configuration and of the command; what is printed at the start is the bound address."""
    assert InferenceConfig().host == parse_args(["--model-path", "m"]).host == "127.0.0.1"
    with bind(parse_args(["--model-path", "m"]).host, 0) as bound:
        assert bound.family == socket.AF_INET
        assert bound.getsockname()[0] == "127.0.0.1"
    for path in (path for name in ("asyncrl", "buffer", "weightsync") for path in (ROOT / name).rglob("*.py")):
        constants = [node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant)]
        assert not {"0.0.0.0", "::"} & {value for value in constants if isinstance(value, str)}, path


def test_a_formula_in_place_of_a_functions_name_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    """B218: a name is looked up, never evaluated."""
    file = tmp_path / "reward.py"
    file.write_text("def mean(data_source, solution_str, ground_truth, extra_info=None):\n    return 0.0\n")
    assert callable(load_reward(file, "mean").call)
    for formula in ("mean.__globals__['__builtins__']", "mean.__globals__", "__import__('os').getpid()", "mean()"):
        with pytest.raises(RewardError, match="has no function"):
            load_reward(file, formula)


HOSTILE = (
    "__import__('pathlib').Path({path!r}).unlink()",
    "import os; os.remove({path!r})",
    "```python\nimport os\nos.remove({path!r})\n```",
    'exec("import os; os.remove({path!r})")',
    "().__class__.__base__.__subclasses__()",
)
WRAPS = (
    "{}",
    "#### {}",
    "\\boxed{{{}}}",
    "The final answer is {}. I hope it is correct.",
    "answer: {}",
    "$x = {}$",
    "2+{}",
)


@pytest.mark.filterwarnings("ignore")  # sympy has opinions about 2+()
# reasoning-gym's needs rows of its own: test_converters_from_elsewhere.py
@pytest.mark.parametrize("source", sorted(REWARDS.keys() - {"reasoning_gym"}))
def test_no_reward_runs_what_a_model_wrote(source: str, tmp_path: Path) -> None:
    """B219: an answer that is code, in every form in which an answer is looked for."""
    marker = tmp_path / "marker"
    marker.touch()
    for code in HOSTILE:
        for wrap in WRAPS:
            compute_score(source, wrap.format(code.format(path=str(marker))), "12")
    assert marker.exists()


def test_no_tool_runs_what_a_model_wrote(tmp_path: Path) -> None:
    """B219: the calculator gets the same code as its expression."""
    marker = tmp_path / "marker"
    marker.touch()
    for code in HOSTILE:
        with pytest.raises(ToolError):
            calc({"expr": code.format(path=str(marker))})
    assert marker.exists()


def test_the_docs_say_that_a_reward_of_ones_own_is_no_sandbox() -> None:
    """B219: whoever writes a reward that executes answers is told what it runs with."""
    import asyncrl.envs.rewards

    assert "no sandbox" in str(asyncrl.envs.rewards.__doc__)


@pytest.mark.parametrize("tag", ["!!python/object/apply:os.getpid []", "!!python/name:os.system", "!!binary aGk="])
def test_a_tag_in_a_configuration_is_refused_with_its_line(tmp_path: Path, tag: str) -> None:
    """B220: `lr: !!python/object/apply:os.getpid []`."""
    file = tmp_path / "run.yaml"
    file.write_text(f"actor:\n  lr: {tag}\n")
    with pytest.raises(ConfigError, match=r"line 2.*tag") as refused:
        load(file)
    assert tag.split()[0].removeprefix("!!") in str(refused.value)
    with pytest.raises(ConfigError, match="tag"):
        load(TINY, [f"actor.lr={tag}"])


def test_a_name_out_of_the_data_never_becomes_a_path(tmp_path: Path) -> None:
    """B221: a data source '../../escape' with samples on: one file, inside the run's folder, named by the version."""
    folder = tmp_path / "run" / "samples"
    evaluation = Evaluation.__new__(Evaluation)
    evaluation._samples_dir, evaluation._num_samples = folder, 8
    trajectory = Trajectory(rows=(row([pack(1, 0)]),), reward=1.0, extra_info={"prompt_text": "../../escape"})
    evaluation._write_samples([Group(0, 1, "../../escape", (trajectory,))], pack(1, 0), "0")
    made = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert made == ["run/samples/0.jsonl"]


@pytest.mark.parametrize("name", ["../../escape", "/etc", "a/b", "..", "a\x00b", "a\nb", ""])
def test_a_runs_name_that_could_leave_its_folder_is_refused(name: str) -> None:
    """B221: the name of a run is part of paths and keys."""
    with pytest.raises(BufferError, match=r"run\.name"):
        check_run(name)
    assert not os.path.lexists("escape")
