"""``python -m race`` is the command ``race``."""

from race.cli import main

if __name__ == "__main__":
    main()
