"""`buffer` and `weightsync` are common names: another distribution must not have replaced them."""

import importlib
from importlib.metadata import packages_distributions

import pytest


@pytest.mark.parametrize("package", ["asyncrl", "buffer", "weightsync"])
def test_the_package_carries_our_mark_and_no_other_owner(package: str) -> None:
    assert importlib.import_module(package).OWNER == "asyncrl"
    assert set(packages_distributions().get(package, [])) <= {"asyncrl"}
