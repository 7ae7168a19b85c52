"""Data sets, networks, text and batches to train on. All lessons.

`data` loads digits and MNIST, `given_data` loads Fashion-MNIST and CIFAR-10 from the user's files, and `models` has the
networks for them. Lesson 3 uses `gan` and `ring`; lesson 7 uses `resnet`, and `bert` with `text` and `masked_words`. A
network is a function that returns a Keras model, the same for the same seed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
