"""The error that the lab raises when something around it is missing: the message says what, and what to do."""


class LabError(RuntimeError):
    """Something that the lab needs is not here; its message is meant to be read by the user as it is."""
