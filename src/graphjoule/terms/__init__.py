"""What may be added to anybody's loss: the energy limits, a penalty on the weights, and terms of one's own."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
