"""What `forked` has imported before it forks."""

import runpy

from tests.forked import PRELOADED, SCRIPTS

for script in PRELOADED:
    runpy.run_path(str(SCRIPTS / f"{script}.py"), run_name="imported")
