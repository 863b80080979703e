"""A profile as a YAML file, for people to edit: what would longer answers, slower tools or a faster trainer change?"""

from pathlib import Path

import yaml
from pydantic import ValidationError

from asyncrl.errors import ConfigError
from asyncrl.tuning.profile import Profile


def write(profile: Profile, path: Path) -> None:
    """Write it."""
    path.write_text(yaml.safe_dump(profile.model_dump(mode="python"), sort_keys=False))


def read(path: Path) -> Profile:
    """Read it.

    Raises:
        ConfigError: it is no profile; every key that is wrong is named.
    """
    try:
        return Profile.model_validate(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror}). Give a run directory or a profile.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is no YAML: {error}") from error
    except ValidationError as error:
        problems = "\n".join(
            f"  {'.'.join(str(part) for part in problem['loc']) or 'the file'}: {problem['msg']}"
            for problem in error.errors()
        )
        raise ConfigError(
            f"{path} is no profile:\n{problems}\n`asyncrl tune RUN_DIR --save FILE` writes one to begin with."
        ) from error
