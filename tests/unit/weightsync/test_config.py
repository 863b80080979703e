"""Settings: what is refused and how the message helps."""

import subprocess
import sys

import pytest
from pydantic import ValidationError

from weightsync.config import TcpConfig, WeightsyncConfig


def test_auto_takes_the_directory_if_there_is_one() -> None:
    assert WeightsyncConfig().moves_by == "redis"
    assert WeightsyncConfig(directory="/shared").moves_by == "directory"
    assert WeightsyncConfig(transport="redis").moves_by == "redis"
    assert WeightsyncConfig(transport="tcp").moves_by == "tcp"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"transport": "tcp", "tcp": {"bind": "0.0.0.0"}},
            "without weightsync.key anybody there could read the weights",
        ),
        ({"transport": "tcp", "tcp": {"bind": "10.0.0.7"}}, "weightsync.key"),
        ({"transport": "tcp", "tcp": {"bind": "localhost"}}, "is no IP address"),
        ({"transport": "tcp", "tcp": {"keep_bytes": 0}}, "greater than or equal to 1"),
        ({"transport": "tcp", "directory": "/shared"}, "has no effect with weightsync.transport = tcp"),
        ({"tcp": {"first_port": 29600}}, r"weightsync.tcp.\* has no effect with weightsync.transport = auto"),
        ({"transport": "directory"}, "needs weightsync.directory"),
        ({"transport": "redis", "directory": "/shared"}, "has no effect"),
        ({"transport": "carrier pigeon"}, "auto"),
        ({"anchor_interval": 0}, "greater than or equal to 1"),
        ({"bucket_words": 1 << 31}, "less than 2147483648"),
        ({"key": "short"}, "shorter than 16"),
        ({"anchors": 3}, "Extra inputs"),
        ({"publish_deadline_s": float("inf")}, "finite"),
    ],
)
def test_a_setting_that_cannot_work_is_refused_in_words(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        WeightsyncConfig.model_validate(settings)


def test_a_key_gives_32_bytes_and_is_never_shown() -> None:
    config = WeightsyncConfig.model_validate({"key": "a secret that is long enough"})
    sealed = config.seal_key()
    assert sealed is not None
    assert len(sealed) == 32
    assert sealed != WeightsyncConfig.model_validate({"key": "another that is long enough"}).seal_key()
    assert "a secret" not in repr(config)
    assert WeightsyncConfig().seal_key() is None


def test_tcp_off_loopback_is_taken_with_a_key() -> None:
    for bind in ("0.0.0.0", "::", "10.0.0.7"):
        found = WeightsyncConfig.model_validate(
            {"transport": "tcp", "key": "sixteen characters", "tcp": {"bind": bind}}
        )
        assert not found.tcp.is_loopback
    assert WeightsyncConfig.model_validate({"transport": "tcp", "tcp": {"bind": "::1"}}).tcp.is_loopback


def test_every_setting_is_explained() -> None:
    for section in (WeightsyncConfig, TcpConfig):
        for name, field in section.model_fields.items():
            assert field.description, name


def test_importing_the_package_and_its_settings_is_light() -> None:
    code = (
        "import sys, weightsync, weightsync.config\n"
        "heavy = {'torch', 'redis', 'numba', 'ray', 'transformers', 'zstandard', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_runs_beside_and_inside_the_server_lacks_what_is_not_there() -> None:
    """A host has no torch; a server's environment has torch and numpy, and nothing else of ours."""
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ABSENT: raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "import MODULE\n"
    )
    for absent, module in (
        ({"torch", "numba"}, "weightsync.receiver"),
        ({"redis", "msgpack", "blake3", "zstandard", "pydantic", "numba"}, "weightsync.sglang_loader"),
    ):
        script = code.replace("ABSENT", repr(absent)).replace("MODULE", module)
        subprocess.run([sys.executable, "-c", script], check=True)
