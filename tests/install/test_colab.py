"""Lessons prepare their environment on Colab and do nothing elsewhere."""

import pytest

from dgc_lab.install import colab
from dgc_lab.install.colab import NO_GPU, prepare


def test_prepare_does_nothing_outside_colab(monkeypatch, capsys):
    monkeypatch.delenv("COLAB_RELEASE_TAG", raising=False)
    monkeypatch.setattr(colab, "build", lambda: pytest.fail("Horovod was built"))
    prepare(horovod=True, gpu=True)
    assert capsys.readouterr().out == ""


def test_prepare_builds_horovod_and_requests_a_gpu_on_colab(monkeypatch, capsys):
    import tensorflow as tf

    builds = []
    monkeypatch.setenv("COLAB_RELEASE_TAG", "release-colab_20260819-060052_RC00")
    monkeypatch.setattr(colab, "build", lambda: builds.append("built"))
    prepare()
    assert not builds
    prepare(horovod=True, gpu=True)
    assert builds == ["built"]
    said = capsys.readouterr().out
    assert said == ("" if tf.config.list_physical_devices("GPU") else NO_GPU + "\n")
