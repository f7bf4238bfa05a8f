"""Training: settings, one or many seeds in one program, records, run folders; `graphjoule.fit` puts them together."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
