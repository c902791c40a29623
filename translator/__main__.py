"""Run a command of the shell: `python -m translator train`."""

from translator.cli import main

if __name__ == "__main__":
    main()
