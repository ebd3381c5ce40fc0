"""`python -m hmas` is the command `hmas`."""

from hmas.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
