"""Stand-in for Colab's module of this name, for submissions written on Colab: its functions do nothing."""


class _Part:
    """A part of the module, whose functions do nothing and return None."""

    def __init__(self, *names: str):
        for name in names:
            setattr(self, name, _nothing)


def _nothing(*arguments, **named) -> None:
    """Take any arguments."""


auth = _Part("authenticate_user")
data_table = _Part("enable_dataframe_formatter", "disable_dataframe_formatter")
drive = _Part("mount", "flush_and_unmount")
files = _Part("upload", "download", "view")
output = _Part("clear", "eval_js", "enable_custom_widget_manager", "register_callback")
runtime = _Part("unassign")
userdata = _Part("get")
