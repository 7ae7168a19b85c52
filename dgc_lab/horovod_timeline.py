"""What Horovod did and when: a reader of the timeline that Horovod writes.

Horovod writes one when told to, by the environment variable ``HOROVOD_TIMELINE=FILE`` from the start on, or by
``hvd.start_timeline(FILE)`` and ``hvd.stop_timeline()`` in between. The file is in the format of Chrome's trace viewer
(chrome://tracing and https://ui.perfetto.dev show it): one "process" for each tensor, with a pair of events for the
beginning and the end of each phase.

Source: https://horovod.readthedocs.io/en/stable/timeline.html
"""
