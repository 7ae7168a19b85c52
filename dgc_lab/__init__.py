"""DGC Lab: how distributed deep learning combines gradients, to read, to run and to try out.

``import dgc_lab`` is quick and starts no TensorFlow: import the module that you need.

    from dgc_lab.widgets import CompressionSweep
    from dgc_lab.compression import thresholds, split
"""

__version__ = "0.1.0"
