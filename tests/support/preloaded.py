"""What `forked` has imported before it forks: all that scripts import, and what PyTorch does when several processes train."""

import runpy

import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

import tests.support.processes
import tests.support.trainings  # noqa: F401
from tests.support.forked import PRELOADED, SCRIPTS
from translator.text.language import rank_languages

for script in PRELOADED:
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="imported")
rank_languages("")  # loads its model
