"""What is trained: data sets, networks, text, batches. All lessons.

`data` has digits and MNIST, `given_data` Fashion-MNIST and CIFAR-10 where the user has them, `models` their networks.
Lesson 3 has the `gan` and its `ring`, lesson 7 `resnet` and `bert` with its `text` and `masked_words`. A network is a
function that returns a Keras model, the same for the same seed.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
