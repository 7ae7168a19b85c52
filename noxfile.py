"""Run the quick tests with the oldest and the newest version of every dependency on each Python: ``nox`` (needs uv).

To run one session: ``nox -s "versions-3.11(end='oldest')"``.
"""

import nox

nox.options.default_venv_backend = "uv"
QUICK = (
    "dgc_lab",
    "tests/compression/test_boundaries.py",
    "tests/compression/test_everywhere.py",
    "tests/compression/test_one_gradients_way.py",
    "tests/compression/test_state.py",
    "tests/workloads",
    "tests/aggregation/test_aggregation.py",
    "tests/exercises",
    "tests/replicas/test_replicas.py",
    "tests/training/test_steps_at_once.py",
)
SOURCE_ONLY = ("pygiftparser", "pyslet", "yattag")  # pure Python, without wheels on PyPI


@nox.session(python=["3.11", "3.12", "3.13"])
@nox.parametrize("end", ["oldest", "newest"])
def versions(session, end):
    """Test with wheels only: if the oldest scipy has none for this Python, take the oldest that has one."""
    resolution = {"oldest": "lowest-direct", "newest": "highest"}[end]
    built = [option for name in SOURCE_ONLY for option in ("--no-binary", name)]
    wheels = ("--only-binary", ":all:", *built, "--resolution", resolution)
    session.install(*wheels, "--requirement", "pyproject.toml", "--extra", "lab", "--extra", "dev")
    session.install("--no-deps", "--editable", ".")
    session.run("python", "-m", "dgc_lab", "build-native")
    session.run("python", "-m", "pytest", "-m", "not alone and not nightly", *QUICK, *session.posargs)
