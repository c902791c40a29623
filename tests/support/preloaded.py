"""What `forked` has imported before it forks: all that scripts import, and what PyTorch does when several processes train."""

from importlib import import_module

import hydra  # noqa: F401
import torch._dynamo
import torch.distributed.fsdp  # noqa: F401

import tests.support.processes
import tests.support.trainings  # noqa: F401
from translator import cli
from translator.text.language import rank_languages

for command in cli.COMMANDS.values():
    import_module(f"translator.{command.work.split(':')[0]}")
rank_languages("")  # loads its model
