"""What `forked` has imported before it forks."""

import runpy

import torch.distributed.fsdp  # noqa: F401

import tests.test_distributed  # noqa: F401
from tests.forked import PRELOADED, SCRIPTS

for script in PRELOADED:
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="imported")
