"""Which model to take: searches by validation that share work and survive kills, and simpler models to compare with.

Each name is imported when it is first asked for.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
