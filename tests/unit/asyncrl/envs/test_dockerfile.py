"""The part of a Dockerfile that needs no container: carried out as Docker would, all else refused by line."""

from pathlib import Path

import pytest

from asyncrl.envs.harbor.dockerfile import Prepared, prepare
from asyncrl.envs.harbor.workspace import WorkspaceError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "environment"
    (folder / "data/deep").mkdir(parents=True)
    for place in ("a.txt", "b.txt", "data/one", "data/deep/two"):
        (folder / place).write_text(place)
    return folder


def prepared(context: Path, text: str, *, skip_run: bool = False) -> tuple[Prepared, dict[str, str]]:
    """What came of it, and the files of the workspace."""
    root = context.parent / "root"
    root.mkdir()
    (context / "Dockerfile").write_text(text)
    found = prepare(context / "Dockerfile", root, skip_run=skip_run)
    return found, {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("line", "files"),
    [
        ("COPY a.txt .", {"app/a.txt"}),
        ("COPY a.txt /srv/", {"srv/a.txt"}),
        ("COPY a.txt /srv/x", {"srv/x"}),
        ("COPY a.txt b.txt /srv", {"srv/a.txt", "srv/b.txt"}),
        ("COPY *.txt ./in/", {"app/in/a.txt", "app/in/b.txt"}),
        ("COPY data /srv", {"srv/one", "srv/deep/two"}),
        ("COPY ./data/ /srv/", {"srv/one", "srv/deep/two"}),
        ('COPY ["a.txt", "/srv/with space"]', {"srv/with space"}),
        ("COPY --chown=agent:agent --link a.txt /x", {"x"}),
        ("COPY $NAME.txt ${PLACE}/", {"srv/a.txt"}),
    ],
)
def test_files_are_copied_where_docker_copies_them(context: Path, line: str, files: set[str]) -> None:
    _, found = prepared(context, f"FROM x\nWORKDIR /app\nENV NAME=a PLACE=/srv\n{line}\n")
    assert set(found) == files


def test_the_directory_and_its_whole_content_are_copied(context: Path) -> None:
    _, found = prepared(context, "COPY . /app\n")
    assert set(found) == {"app/a.txt", "app/b.txt", "app/data/one", "app/data/deep/two", "app/Dockerfile"}


def test_variables_and_directories_are_kept(context: Path) -> None:
    found, _ = prepared(
        context,
        '# a comment\nFROM python:3 AS base\nENV A=1 B="two words"\nENV C three words\nENV D=$A-${B}\n\n'
        'LABEL x=y\nWORKDIR /srv\n# within\nWORKDIR deep/$A\nCMD ["sh"]\n',
    )
    assert found.env == {"A": "1", "B": "two words", "C": "three words", "D": "1-two words"}
    assert found.workdir == "/srv/deep/1"
    assert (context.parent / "root/srv/deep/1").is_dir()


def test_without_a_directory_it_is_app(context: Path) -> None:
    found, _ = prepared(context, "FROM x\n")
    assert found.workdir == "/app"
    assert (context.parent / "root/app").is_dir()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("FROM x\nRUN apt-get update \\\n  && apt-get install -y gcc\n", r"line 2: RUN needs a container.*skip_run"),
        ("FROM x\n\nADD http://host/x /x\n", r"line 3: ADD needs a container\. Set rollout.harbor.runner to docker\.$"),
        ("USER agent\n", "line 1: USER needs a container"),
        ("COPY --from=build /x /x\n", "line 1: COPY --from=build"),
        ("COPY ../secret /x\n", "line 1: COPY ../secret leaves the directory"),
        ("COPY a.txt /app/../../x\n", r"line 1: /app/\.\./\.\./x must not have \.\."),
        ("COPY absent /x\n", "line 1: COPY absent: there is no such file"),
        ("COPY a.txt\n", "line 1: COPY a.txt needs a container"),
        ('ENV A="open\n', "line 1: ENV A=.*No closing quotation"),
        ("FROM x\nENV A=1 \\\n", "line 2: the file ends within an instruction"),
    ],
)
def test_what_needs_a_container_or_is_wrong_is_refused_by_line(context: Path, text: str, says: str) -> None:
    with pytest.raises(WorkspaceError, match=says):
        prepared(context, text)


def test_run_lines_are_left_out_if_that_is_wanted_and_are_named(context: Path) -> None:
    found, files = prepared(context, "FROM x\nRUN make \\\n  all\nCOPY a.txt /x\n", skip_run=True)
    assert [line.split("line ")[1] for line in found.skipped] == ["2: RUN make all"]
    assert set(files) == {"x"}
