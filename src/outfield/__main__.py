"""``python -m outfield``."""

from outfield.cli import main

if __name__ == "__main__":
    main()
