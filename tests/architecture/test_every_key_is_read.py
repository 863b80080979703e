"""A key that nothing reads is a setting without effect; every key of the tree must be read by the code that runs."""

import ast
import dataclasses
import textwrap
from pathlib import Path

from pydantic import BaseModel

from asyncrl.config import Config
from asyncrl.load_config.keys import known_keys, known_sections, section_class
from asyncrl.schedule import Schedule
from tests.support.config_reads import Key, Sections, reads_of, texts

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("asyncrl", "buffer", "weightsync")
DEFINE_KEYS = (
    *sorted((ROOT / "asyncrl" / "config").glob("*.py")),
    ROOT / "buffer/config.py",
    ROOT / "weightsync/config.py",
)
ONLY_LOOK = tuple(ROOT / "asyncrl" / name for name in ("config", "load_config", "doctor", "commands"))
"""Folders that show or check keys; a key must have an effect elsewhere."""

STANDS_FOR: dict[str, str] = {
    "AlgorithmSection": "AlgorithmConfig",
    "ActorSection": "ActorConfig",
    "Bounds": "TrainerConfig",
    "Course": "OptimizerConfig",
    "Epochs": "ActorConfig",
    "ModelSettings": "ActorConfig",
    "PolicySettings": "ActorConfig",
    "Settings": "OptimizerConfig",
    "Retention": "CheckpointConfig",
}
"""Protocol -> section, where a room declares what it needs of a section instead of importing it."""


def family(section: type[BaseModel]) -> list[type[BaseModel]]:
    """A section and those it inherits keys from."""
    return [base for base in section.__mro__ if issubclass(base, BaseModel) and base.model_fields]


def fields(section: type[BaseModel]) -> dict[str, str | None]:
    return {
        name: inner.__name__ if (inner := section_class(field)) is not None else None
        for name, field in section.model_fields.items()
    }


def sections() -> Sections:
    known = {section.__name__: fields(section) for leaf in known_sections().values() for section in family(leaf)}
    known["Schedule"] = {field.name: None for field in dataclasses.fields(Schedule)}
    return Sections(known, STANDS_FOR)


def keys_by_class() -> dict[Key, str]:
    """(class, field) -> dotted key, for every value of the tree and every field of a mode's row."""
    classes = known_sections()
    keys = {}
    for key in known_keys():
        section, _, name = key.rpartition(".")
        keys[classes[section].__name__, name] = key
    return keys | {("Schedule", field.name): f"MODES: {field.name}" for field in dataclasses.fields(Schedule)}


def test_every_key_is_read() -> None:
    modules = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    running = [path for path in modules if path not in DEFINE_KEYS and not set(path.parents) & set(ONLY_LOOK)]
    read = reads_of(texts(running), texts(DEFINE_KEYS), sections())
    classes = {section.__name__: section for section in known_sections().values()}
    unread = sorted(
        key
        for (owner, name), key in keys_by_class().items()
        if (owner, name) not in read
        and not any((base.__name__, name) in read for base in family(classes.get(owner, BaseModel)))
    )
    assert unread == [], "read these where they should have an effect, or remove them"


def test_what_stands_for_a_section_has_no_member_but_its_fields() -> None:
    found = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef) and node.name in STANDS_FOR:
                found.add(node.name)
                members = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
                members |= {
                    item.target.id
                    for item in node.body
                    if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
                }
                assert members <= set(sections().fields[STANDS_FOR[node.name]]), node.name
    assert found == set(STANDS_FOR)


def reads(source: str, config: str = "", stands_for: dict[str, str] | None = None) -> set[str]:
    """Fields of a small tree that a source reads."""
    tree = {"Config": {"rollout": "RolloutConfig", "mode": None}, "RolloutConfig": {"n": None, "slots": None}}
    known = Sections({name: dict(inner) for name, inner in tree.items()}, stands_for or {})
    found = reads_of({"a.py": textwrap.dedent(source)}, {"c.py": textwrap.dedent(config)}, known)
    return {f"{owner}.{name}" for owner, name in found}


def test_a_field_is_read_through_parameters_aliases_and_attributes_of_self() -> None:
    assert reads("def f(config: Config): return config.rollout.n") == {"Config.rollout", "RolloutConfig.n"}
    assert "RolloutConfig.n" in reads("def f(config: Config | None):\n  own = config.rollout\n  return own.n")
    assert "RolloutConfig.slots" in reads(
        """
        class Worker:
            def __init__(self, config: RolloutConfig) -> None:
                self._config, self.other = config, 1
            async def run(self) -> int:
                return [self._config.slots for _ in range(3)][0]
        """
    )
    assert "RolloutConfig.n" in reads(
        """
        @dataclass
        class Deps:
            config: "RolloutConfig"
        def load() -> Deps: ...
        def f() -> int:
            return load().config.n
        """
    )


def test_a_field_is_read_through_what_a_base_class_holds() -> None:
    source = """
    class Base:
        def __init__(self, config: RolloutConfig) -> None:
            self._config = config
    class Side(Base):
        def f(self) -> int:
            return self._config.n
    """
    assert reads(source) == {"RolloutConfig.n"}


def test_an_attribute_of_that_name_on_another_object_is_no_reading() -> None:
    assert reads("def f(shape: Shape, config: Config): return shape.n + other.slots") == set()


def test_a_field_that_is_only_written_or_named_in_a_string_is_no_reading() -> None:
    assert reads("def f(config: RolloutConfig): return getattr(config, 'n'), {'slots': 1}") == set()


def test_a_property_reads_its_fields_where_it_is_used_and_a_validator_reads_nothing() -> None:
    config = """
    class RolloutConfig(Section):
        @model_validator(mode="after")
        def fits(self) -> Self:
            assert self.n
        @property
        def total(self) -> int:
            return self.slots
    """
    assert reads("def f(config: RolloutConfig): return 1", config) == set()
    assert reads("def f(config: RolloutConfig): return config.total", config) == {
        "RolloutConfig.total",
        "RolloutConfig.slots",
    }


def test_a_protocol_stands_for_a_section_only_where_it_is_said_so() -> None:
    source = "def f(settings: Settings): return settings.n"
    assert reads(source) == set()
    assert reads(source, stands_for={"Settings": "RolloutConfig"}) == {"RolloutConfig.n"}


def test_the_tree_is_walked_whole() -> None:
    assert len(keys_by_class()) == len(known_keys()) + len(dataclasses.fields(Schedule))
    assert Config in known_sections().values()
