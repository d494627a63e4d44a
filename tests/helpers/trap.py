"""What must never be unpickled."""


class Trap:
    """Its pickle writes a file when it is unpickled."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __reduce__(self):
        return open, (self.marker, "w")
